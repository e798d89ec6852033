// The weights that a run begins with.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// Every rank calls it: its slices become those of options.init_from, or where that is empty of the
// seed, and its adapters those of options.init_adapter, or of the seed. `tell` hears how far it is:
// of 1. `resumed`: a checkpoint has given all that learns; then only what is frozen, which no
// checkpoint holds, is filled in. Errors, the same on all ranks: OpenWeights's, OpenAdapter's,
// StateSource::Read's, InvalidArgument for weights of another shape than options.model; and
// Engine::LoadWeights's.
absl::Status MakeFirstWeights(const TrainOptions& options, bool resumed, Engine& engine,
                              absl::FunctionRef<void(double done)> tell, Collective& world,
                              Stream& stream);

}  // namespace convene::worker
