// PURE. Decides which of a stage's passes are captured as graphs (graphed_stage.h).
#pragma once

namespace convene::worker {

enum class StagePass { kForward, kBackward };

struct GraphedPasses {
  // Each (pass, microbatch) is a graph of its own, since the microbatch's number decides which
  // tokens, activations and gradients its ops touch. No more microbatches than this have graphs: a
  // graph takes memory for each of its launches, on the host and on the GPU.
  static constexpr int kMicrobatchesMax = 64;

  int microbatches = 1;  // a step
  // On data-parallel ranks the step's first forward pass waits for gathered parameters, and its
  // last backward pass starts the reduction of gradients. These passes cannot be graphs, since NCCL
  // queues from a thread of its own and a watchdog follows each collective.
  bool ends_communicate = false;

  // REQUIRES: 0 <= microbatch < microbatches.
  bool Contains(StagePass pass, int microbatch) const {
    if (microbatch >= kMicrobatchesMax) return false;
    if (!ends_communicate) return true;
    return microbatch != (pass == StagePass::kForward ? 0 : microbatches - 1);
  }
};

}  // namespace convene::worker
