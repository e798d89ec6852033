// Saving and restoring across all ranks: the agreement around the files of
// worker_runtime/checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/shard/sharded_optimizer.h"
#include "worker_runtime/trainer/options.h"

namespace convene::worker {

// A text form of the shape: checkpoints of another shape are refused.
std::string ShapeText(const ModelConfig& config);

// Every rank calls it. Returns OK on all ranks when the checkpoint is published, else an error on
// all ranks: the failing rank's own, and "rank R could not write" on the others. Older checkpoints
// stay either way; on success all but `keep` are removed (rank 0 logs
// what it could not remove).
absl::Status SaveCheckpoint(const std::string& directory, const CheckpointInfo& info, int keep,
                            const ShardedOptimizer& optimizer, Collective& world, Stream& stream);

struct Restored {
  CheckpointInfo info;
  std::string path;
};

// Every rank calls it with the same arguments. Loads what options.resume says and gathers the
// parameters; nullopt on all ranks when there is nothing to resume from. Rank 0 decides which
// checkpoint and logs each one that it had to refuse.
//
// `is_restart`: the job ran before (a worker died, a node came or went). It then goes on from the
// newest checkpoint of its own whatever options.resume says; that was for the first start. So that
// its own can be told from older ones, a first start with `none` or a directory is refused
// (FailedPrecondition) where checkpoint_dir holds checkpoints of later steps.
//
// NotFound or DataLoss for a named checkpoint that is not whole; FailedPrecondition for one of
// another shape or seed.
absl::StatusOr<std::optional<Restored>> RestoreCheckpoint(const TrainOptions& options,
                                                          bool is_restart,
                                                          ShardedOptimizer& optimizer,
                                                          Collective& world, Stream& stream);

}  // namespace convene::worker
