#include "worker_runtime/checkpointing/saver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/full_disk.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/step_directory.h"
#include "worker_runtime/checkpointing/save_restore.h"
#include "worker_runtime/contract/progress_page.h"
#include "worker_runtime/device/waited.h"

namespace convene::worker {
namespace {

// The last checkpoint of a run is tried so often, but no oftener than failures_max says. A node
// that is to stop has a grace of half a minute or more.
constexpr int64_t kLastSaveTries = 5;
constexpr absl::Duration kLastSavePause = absl::Seconds(1);
// The agent learns how long a phase may last. A copy of seconds must not teach it the limit of the
// waits for a disk, so the copy has a phase of its own.
constexpr char kCopyPhase[] = "checkpoint copy";

}  // namespace

CheckpointSaver::CheckpointSaver(const Options& options, Collective& world,
                                 ProgressWriter& progress, SaveListener* listener, Clock& clock)
    : options_(options),
      world_(world),
      progress_(progress),
      listener_(listener),
      clock_(clock),
      saved_step_(options.saved_step),
      failures_(options.failures_max) {
  if (options_.in_background) queue_.Push([] {});  // starts the thread
}

CheckpointSaver::~CheckpointSaver() {
  if (!flight_.has_value()) return;
  world_.Abort("the training has ended before its checkpoint was saved");
}

absl::Status CheckpointSaver::Save(const CheckpointInfo& info, CheckpointedState& optimizer) {
  if (options_.directory.empty()) return absl::OkStatus();
  const MonotonicTime began = clock_.Now();
  CONVENE_RETURN_IF_ERROR(Finish(info.step));
  if (saved_step_ == info.step) return absl::OkStatus();
  Begin(info, optimizer, began, options_.in_background);
  return options_.in_background ? absl::OkStatus() : Finish(info.step);
}

absl::Status CheckpointSaver::SaveLast(const CheckpointInfo& info, CheckpointedState& optimizer) {
  if (options_.directory.empty()) return absl::OkStatus();
  FailuresInARow failures(std::min(kLastSaveTries, options_.failures_max));
  if (flight_.has_value() && flight_->info.step != info.step && saved_step_ >= 0) {
    write_.is_given_up = HasHardlyBegun();
  }
  CONVENE_RETURN_IF_ERROR(Finish(info.step));
  while (saved_step_ != info.step) {
    if (disk_is_full_) MakeRoom(info.step);
    if (failures.count() > 0) clock_.SleepFor(kLastSavePause);
    Begin(info, optimizer, clock_.Now(), /*in_background=*/false);
    CONVENE_RETURN_IF_ERROR(Land(failures, kLastSavePause));
    CONVENE_RETURN_IF_ERROR(end_);
  }
  return absl::OkStatus();
}

void CheckpointSaver::MakeRoom(int64_t step) {
  const DirectoryLock* const lock = options_.lock;
  if (world_.rank() != 0 || options_.keep < 2 || (lock != nullptr && !lock->Check().ok())) return;
  const auto count = [this] {
    const auto there = ListCheckpoints(options_.directory);
    return there.ok() ? there->size() : 0;
  };
  const size_t before = count();
  const absl::Status removed = RemoveOldCheckpoints(options_.directory, step, /*keep=*/1);
  if (listener_ == nullptr || (removed.ok() && count() == before)) return;
  listener_->Say(removed.ok()
                     ? "the disk is full: to make room for the last checkpoint, all older ones but "
                       "the newest are removed"
                     : absl::StrCat("older checkpoints could not make room: ", removed.message()));
}

absl::Status CheckpointSaver::Poll() {
  return flight_.has_value() && HasLanded() ? Land(failures_, absl::ZeroDuration())
                                            : absl::OkStatus();
}

bool CheckpointSaver::HasLanded() {
  return queue_.Await(queue_.pushed(), /*timeout=*/absl::ZeroDuration());
}

bool CheckpointSaver::HasHardlyBegun() const {
  if (!flight_->pieces.ok()) return false;
  int64_t bytes = 0;
  for (const PieceToWrite& item : *flight_->pieces) {
    bytes += static_cast<int64_t>(item.data.size_bytes());
  }
  return 2 * write_.bytes < bytes;
}

void CheckpointSaver::Begin(const CheckpointInfo& info, CheckpointedState& optimizer,
                            MonotonicTime began, bool in_background) {
  progress_.Tell(info.step, in_background ? kCopyPhase : contract::kCheckpointPhase);
  write_.bytes = 0;
  write_.is_given_up = false;
  flight_ = Flight{.info = info, .pieces = optimizer.PiecesToWrite(), .began = began};
  if (in_background) {
    flight_->held = clock_.Now() - began;
    queue_.Push([this] { Write(); });
    return;
  }
  Write();
  flight_->held = flight_->took;
}

void CheckpointSaver::Write() {
  Stream stream = Stream::Cpu();
  const OwnTime own;
  flight_->result =
      SaveCheckpoint(options_.directory, flight_->info, options_.keep, flight_->pieces, world_,
                     stream, &write_, options_.tokenizer_files, options_.lock);
  flight_->took = clock_.Now() - flight_->began;
  flight_->own = own.Get();
}

absl::Status CheckpointSaver::Finish(int64_t step) {
  if (!flight_.has_value()) return end_;
  progress_.Tell(step, contract::kCheckpointPhase);
  if (listener_ != nullptr && !HasLanded() && !write_.is_given_up) {
    listener_->Say(absl::StrCat("the checkpoint after step ", flight_->info.step,
                                " is still being written: the training waits for it after step ",
                                step));
  }
  CONVENE_RETURN_IF_ERROR(Land(failures_, absl::ZeroDuration()));
  return end_;
}

absl::Status CheckpointSaver::Land(FailuresInARow& failures, absl::Duration pause) {
  queue_.Await(queue_.pushed());
  const Flight flight = *std::exchange(flight_, std::nullopt);
  progress_.facts().checkpoint += flight.own;
  CONVENE_RETURN_IF_ERROR(flight.result.status());
  const absl::Status& verdict = flight.result->verdict;
  const int64_t step = flight.info.step;
  if (absl::IsCancelled(verdict)) {  // no failure: the last save follows
    if (listener_ != nullptr) {
      listener_->Say(absl::StrCat("the checkpoint after step ", step,
                                  " is given up, hardly begun: the last one takes its place"));
    }
    return absl::OkStatus();
  }
  disk_is_full_ = TellsFullDisk(verdict);
  // A run that has lost its directory does not get it back.
  end_ = absl::IsAborted(verdict) ? verdict : failures.Record(verdict);
  if (verdict.ok()) saved_step_ = step;
  if (listener_ == nullptr || !end_.ok()) return absl::OkStatus();
  if (verdict.ok()) {
    return listener_->CheckpointSaved(
        StepDirectory(options_.directory, step),
        {.step = step,
         .checkpoint_held_seconds = absl::ToDoubleSeconds(flight.held),
         .checkpoint_seconds = absl::ToDoubleSeconds(flight.took)});
  }
  listener_->CheckpointFailed(step, verdict, failures, pause);
  return absl::OkStatus();
}

}  // namespace convene::worker
