// The weights that a run begins with.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// OpenWeights' and OpenAdapter's paths; "": the seed gives them.
struct FirstWeights {
  std::string weights;
  std::string adapter;
  int longest_text = 0;  // the largest TrainOptions::longest_text of all ranks
};

// Every rank calls it: options.init_from and options.init_adapter, and where these are jobs'
// directories, which may gain checkpoints meanwhile, the newest step that rank 0 finds. But a run
// that goes on from a file takes the step in options.init_from that this one names as its base.
// Rank 0 warns where a run that stays beside this step may lose it to the job that saves there.
// Errors, the same on all ranks: NewestStep's, the collective's.
absl::StatusOr<FirstWeights> FindFirstWeights(const TrainOptions& options, Collective& world,
                                              Stream& stream);

// Every rank calls it: its slices become those of `first`. `tell` hears how far it is: of 1.
// `resumed`: a checkpoint has given all that learns; then only what is frozen, which no checkpoint
// holds, is filled in. Errors, the same on all ranks: OpenWeights's, OpenAdapter's,
// StateSource::Read's, InvalidArgument for weights of another shape than options.model; and
// Engine::LoadWeights's. `world` waits for the slowest rank's disk.
absl::Status MakeFirstWeights(const TrainOptions& options, const FirstWeights& first, bool resumed,
                              Engine& engine, absl::FunctionRef<void(double done)> tell,
                              Collective& world, Stream& stream);

}  // namespace convene::worker
