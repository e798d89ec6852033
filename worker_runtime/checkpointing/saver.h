// The checkpoints of a run: which of them is written beside the training, what waits for it, and
// how many failures end the run. Files and agreement are SaveCheckpoint's (save_restore.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/checkpointing/failures.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/report/metrics.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/shard/sharded_optimizer.h"

namespace convene::worker {

// Hears how the saves of a run go. Called by the thread that calls the saver.
class SaveListener {
 public:
  virtual ~SaveListener() = default;

  // A checkpoint of this run is at `path`. An error ends the run.
  virtual absl::Status CheckpointSaved(const std::string& path,
                                       const CheckpointMetrics& metrics) = 0;
  // No checkpoint was made after `step`. The save is tried again after `pause`, or, where that is
  // zero, when the next one is due.
  virtual void CheckpointFailed(int64_t step, const absl::Status& why,
                                const FailuresInARow& failures, absl::Duration pause) = 0;
  // A line for the person who watches the run.
  virtual void Say(const std::string& text) = 0;
};

// Every rank has one, and calls Save and SaveLast after the same steps. At most one save is in
// flight. Not thread-safe; a save in flight is the business of the thread "checkpoint". It ends
// when the disk has answered and the ranks have agreed, within the collective's deadline. Where a
// disk never answers, the agent ends the process.
class CheckpointSaver {
 public:
  struct Options {
    std::string directory;     // "": nothing is saved
    int keep = 2;              // see SaveCheckpoint
    int64_t failures_max = 1;  // so many in a row end the run
    // Save returns when its copy is made. REQUIRES: the optimizer copies for checkpoints.
    bool in_background = false;
    int64_t saved_step = -1;                           // the step that `directory` already holds
    absl::Span<const NamedFile> tokenizer_files = {};  // borrowed; see SaveCheckpoint
    const DirectoryLock* lock = nullptr;               // the same
  };

  // Borrows the references and `listener`, which is null on all ranks but 0. Until the saver is
  // gone nobody else uses `world`. For saves in background it starts the thread "checkpoint". Where
  // that cannot be, the process ends (see Thread): a rank that only noticed at its first save would
  // hold up the training of the others.
  CheckpointSaver(const Options& options, Collective& world, ProgressWriter& progress,
                  SaveListener* listener, Clock& clock);
  // Gives up a save in flight: aborts `world`, and waits until the disk lets go.
  ~CheckpointSaver();

  // Between two steps: saves the state as it is now, which `info` describes. Waits for the save in
  // flight first. A save that fails is reported, and the next one tries again. Errors: the
  // collective's; the file system's when failures_max saves in a row have failed.
  absl::Status Save(const CheckpointInfo& info, CheckpointedState& optimizer);
  // The same for a run's last step: on return the checkpoint is on the disk. Where that fails it is
  // tried again, at most kLastSaveTries times; on a full disk all older ones but the newest make
  // room. It takes the place of a save in flight of which less
  // than half is written on some rank, where an older checkpoint is on the disk: so it takes half
  // as long again as a save at most, and what is nearly on the disk is not thrown away.
  absl::Status SaveLast(const CheckpointInfo& info, CheckpointedState& optimizer);

  // Waits for the save in flight, if there is one, after `step`, and reports it. Errors: as Save.
  absl::Status Finish(int64_t step);
  bool is_in_flight() const { return flight_.has_value(); }
  // SaveLast wants the place of the save in flight. From any thread.
  bool gives_up_flight() const { return write_.is_given_up; }
  // Reports a save that has ended meanwhile; does not wait. Errors: the collective's, the
  // listener's.
  absl::Status Poll();
  // Too many saves in a row have failed, or another start has taken the directory over. Ranks
  // notice at different steps, so each asks all others to stop (EngineOptions::stop_wanted), and
  // SaveLast gives the error on all of them.
  bool wants_stop() const { return !end_.ok(); }

 private:
  struct Flight {
    CheckpointInfo info;
    absl::StatusOr<std::vector<PieceToWrite>> pieces;
    MonotonicTime began;
    absl::Duration held = {};
    // Of the one who writes, until HasLanded().
    absl::StatusOr<Agreement> result{};
    absl::Duration took = {};
    absl::Duration own = {};  // of it, without the wait for other ranks
  };

  // Whether less than half of the save in flight is written.
  bool HasHardlyBegun() const;
  void Begin(const CheckpointInfo& info, CheckpointedState& optimizer, MonotonicTime began,
             bool in_background);
  void Write();
  // By rank 0. `step` is about to be saved.
  void MakeRoom(int64_t step);
  bool HasLanded();  // the save in flight
  // Waits for it, and counts how it went. `pause` is for the report.
  absl::Status Land(FailuresInARow& failures, absl::Duration pause);

  const Options options_;
  Collective& world_;
  ProgressWriter& progress_;
  SaveListener* const listener_;
  Clock& clock_;
  int64_t saved_step_;
  FailuresInARow failures_;
  absl::Status end_;           // not OK: no further save
  bool disk_is_full_ = false;  // so the latest save said
  std::optional<Flight> flight_;
  ShardWrite write_;  // of the save in flight
  // Ends first: what it still holds uses the others.
  HostQueue queue_{"checkpoint"};
};

}  // namespace convene::worker
