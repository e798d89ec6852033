// A pipeline stage whose passes are CUDA graphs (graphed_ops.h), where GraphedPasses allows it.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/pipeline/executor.h"
#include "worker_runtime/pipeline/graphed_ops.h"
#include "worker_runtime/pipeline/graphed_passes.h"

namespace convene::worker {

// REQUIRES: units queue nothing but ops of their stream (so tp and cp are 1, and zero_stage is at
// most 1), with the same addresses and shapes in every step. Another batch, such as one for
// validation, goes to the stage itself.
//
// Not thread-safe.
class GraphedStage final : public PipelineStage {
 public:
  // Borrows both references.
  GraphedStage(PipelineStage& stage, Device& device, const GraphedPasses& passes)
      : stage_(stage), graphs_(device), passes_(passes) {}

  absl::Status Run(const StagePass& pass, Stream& stream) override;
  Elements activation(int slot) override { return stage_.activation(slot); }
  Elements gradient(int slot) override { return stage_.gradient(slot); }

 private:
  PipelineStage& stage_;
  GraphedOps graphs_;
  const GraphedPasses passes_;
};

}  // namespace convene::worker
