// One whole optimizer step, for tests that have nothing to do while it runs.
#pragma once

#include "absl/status/statusor.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/token_batch.h"

namespace convene::worker {

// QueueStep and AwaitStep. REQUIRES: no step is in flight.
inline absl::StatusOr<StepResult> TrainStep(Engine& engine, const TokenBatch& batch,
                                            const UpdateParameters& update,
                                            const StepLimits& limits = {}) {
  CONVENE_RETURN_IF_ERROR(engine.QueueStep(batch, update, limits));
  return engine.AwaitStep();
}

}  // namespace convene::worker
