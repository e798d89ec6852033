// A pipeline stage whose passes the host queues as one CUDA graph each, instead of op by op: small
// models and small microbatches leave gaps on the GPU where the host cannot queue fast enough.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "absl/status/status.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/pipeline/graphed_passes.h"

namespace convene::worker {

// The first run of a pass goes op by op, since ops build plans at their first use; the second run
// is captured and launched; later runs launch the graph. Same kernels, same order, same bits.
//
// When a capture fails, one warning says why, and from then on all passes go op by op.
//
// REQUIRES: the passes of GraphedPasses queue nothing but ops of their stream (so tp and cp are 1,
// and zero_stage is at most 1), with the same addresses and shapes in every step. Another batch,
// such as one for validation, goes to the stage itself.
//
// Not thread-safe.
class GraphedStage final : public PipelineStage {
 public:
  // Borrows both references.
  GraphedStage(PipelineStage& stage, Device& device, const GraphedPasses& passes);

  absl::Status Run(const StagePass& pass, Stream& stream) override;
  Elements activation(int slot) override { return stage_.activation(slot); }
  Elements gradient(int slot) override { return stage_.gradient(slot); }

 private:
  struct Captured {
    bool has_run = false;
    std::unique_ptr<Graph> graph;  // null: not yet
  };

  PipelineStage& stage_;
  Device& device_;
  const GraphedPasses passes_;
  std::map<std::tuple<ComputeKind, int, int>, Captured> captured_;  // by pass, chunk and microbatch
  bool has_failed_ = false;
};

}  // namespace convene::worker
