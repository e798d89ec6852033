// PURE. Decides what of a stage's passes is captured as graphs (graphed_stage.h).
#pragma once

#include "worker_runtime/pipeline/executor.h"

namespace convene::worker {

struct GraphedPasses {
  // Each pass of each microbatch is a graph of its own, since the microbatch's number decides which
  // tokens, activations and gradients its ops touch. No more microbatches than this have graphs: a
  // graph takes memory for each of its launches, on the host and on the GPU.
  static constexpr int kMicrobatchesMax = 64;

  // A chunk's first forward pass of a step waits for gathered parameters on data-parallel ranks,
  // and for the host's update where the optimizer is offloaded. Its last pass starts the reduction
  // of gradients. Neither can be in a graph: NCCL queues from a thread of its own and a watchdog
  // follows each collective, and a graph holds no wait of the host. Both happen between units, so
  // in such a pass each unit is a graph of its own.
  bool ends_communicate = false;

  enum class Cut { kNone, kPass, kUnits };
  Cut CutOf(const StagePass& pass) const {
    if (pass.compute.microbatch >= kMicrobatchesMax) return Cut::kNone;
    const bool is_end =
        (pass.is_first && pass.compute.kind == ComputeKind::kForward) || pass.is_last;
    return ends_communicate && is_end ? Cut::kUnits : Cut::kPass;
  }
};

}  // namespace convene::worker
