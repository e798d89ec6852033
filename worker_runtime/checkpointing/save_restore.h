// Saving and restoring across all ranks: the agreement around the files of
// worker_runtime/checkpoint.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/checkpoint/state_source.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/checkpointing/choose_checkpoint.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/shard/sharded_optimizer.h"

namespace convene::worker {

// Every rank calls it. `pieces`: this rank's (ShardedOptimizer::PiecesToWrite), or why it has none.
// The verdict is OK when the checkpoint is published. Else it gives the reason (a full disk, say),
// the job is as sound as before, older checkpoints stay, and the next attempt may succeed. It is
// Cancelled where a rank's `write` was given up. On success all but the newest `keep` are removed
// (rank 0 logs failures to remove). `tokenizer_files`, of rank 0, come with it.
//
// `lock`, of rank 0 (null: none), is of `directory`. Where another start has taken it over, the
// verdict is Aborted, nothing is published, and that start's files stay. Errors: the collective's.
absl::StatusOr<Agreement> SaveCheckpoint(const std::string& directory, const CheckpointInfo& info,
                                         int keep,
                                         const absl::StatusOr<std::vector<PieceToWrite>>& pieces,
                                         Collective& world, Stream& stream,
                                         ShardWrite* write = nullptr,
                                         absl::Span<const NamedFile> tokenizer_files = {},
                                         const DirectoryLock* lock = nullptr);

// The job that saves and resumes.
struct JobIdentity {
  std::string name;
  std::string data;     // Dataset::Identity()
  std::string samples;  // how the data is cut: CheckpointInfo::samples
  TokenizerMark tokenizer;
  // The job ran before: a worker died, a node came or went.
  bool is_restart = false;
};

// Every rank calls it, before RestoreCheckpoint. Rank 0 makes options.checkpoint_dir when it is
// absent and locks it for as long as the returned value lives; the other ranks get nullopt, and so
// do all ranks without a checkpoint_dir.
//
// Another job on rank 0's machine that holds it gets 5 s to end; a job on another machine, and a
// restarted job's own predecessor, 2 min (a file server may keep the locks of a lost node so long);
// but neither more than half of options.checkpoint_timeout. Then a predecessor's lock is replaced.
// But where the job has no name of its own ("none"), the holder may be another job of that name: on
// all ranks DeadlineExceeded. For another job, on all ranks, AlreadyExists. PermissionDenied and
// other codes of the file system when the directory cannot be written to.
absl::StatusOr<std::optional<DirectoryLock>> ClaimCheckpointDirectory(const TrainOptions& options,
                                                                      const JobIdentity& job,
                                                                      Collective& world,
                                                                      Stream& stream);

// Every rank calls it with the same arguments but `source`: where this rank reads the job's state
// from, or why it cannot. The sources of all ranks hold the same state. The verdict is OK when the
// optimizer is filled and the parameters are gathered. Else the job can be restored from other
// sources: StateSource::Read's errors, and FailedPrecondition for a state of another shape, seed or
// optimizer, and for one of other data, or of data cut into other samples, unless
// options.accept_new_data (then rank 0 logs both). A state that does not name its data, or was
// trained with another tokenizer on data that do not name theirs, is loaded with a warning.
// Errors: the collective's.
absl::StatusOr<Agreement> RestoreFrom(const absl::StatusOr<std::unique_ptr<StateSource>>& source,
                                      const TrainOptions& options, const JobIdentity& job,
                                      CheckpointedState& optimizer, Collective& world,
                                      Stream& stream);

// States of the job that lie elsewhere than in files.
class StatesInMemory {
 public:
  virtual ~StatesInMemory() = default;

  // All ranks call it. The newest state, and at each further call the next older one, the same on
  // all ranks; null: there is none. Errors: the collective's.
  virtual absl::StatusOr<std::unique_ptr<StateSource>> OpenNext() = 0;
};

struct Restored {
  CheckpointInfo info;  // began_with is the run's own, also where the checkpoint is another run's
  std::string path;     // "": from memory
};

// Every rank calls it with the same arguments. RestoreFrom the checkpoint that ChooseCheckpoint
// gives rank 0; nullopt on all ranks when there is nothing to resume from. Rank 0 logs each one
// that it had to refuse. When any rank finds one of the run's own checkpoints damaged, the next
// older one is tried: every rank checks the chunks that it reads, and no chunk is checked twice.
// Errors are the same on all ranks.
//
// `memory` (null: none) goes before the files of a restarted job where it holds a state that is as
// new as the newest checkpoint that opens: then no data file is read. A state there that is damaged
// gives way to the next older one. Where a checkpoint's data prove damaged, a state in memory that
// is older goes before the checkpoints that are older still.
//
// Of the job's own checkpoints only those of steps below `below_step` count.
//
// Errors: ChooseCheckpoint's and RestoreFrom's; DataLoss when all of the run's own are damaged.
absl::StatusOr<std::optional<Restored>> RestoreCheckpoint(const TrainOptions& options,
                                                          const JobIdentity& job,
                                                          CheckpointedState& optimizer,
                                                          Collective& world, Stream& stream,
                                                          StatesInMemory* memory = nullptr,
                                                          int64_t below_step = kAnyStep);

}  // namespace convene::worker
