// The weights that a run begins with, where they are another run's.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// Every rank calls it: its slices become those of options.init_from, and `tell` hears how far it
// is: of 1. Errors, the same on all ranks: OpenWeights's, StateSource::Read's, InvalidArgument for
// weights of another shape than options.model; and Engine::LoadWeights's.
absl::Status LoadFirstWeights(const TrainOptions& options, Engine& engine,
                              absl::FunctionRef<void(double done)> tell, Collective& world,
                              Stream& stream);

}  // namespace convene::worker
