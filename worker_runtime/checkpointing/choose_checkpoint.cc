#include "worker_runtime/checkpointing/choose_checkpoint.h"

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

// `first_step`: of what the run began with.
CheckpointChoice ChooseOwn(const TrainOptions& options, int64_t first_step, Refused* refused) {
  const std::string& directory = options.checkpoint_dir;
  const RunBeginning beginning = {.began_with = BeganWith(options), .step = first_step};
  const auto reader = OpenNewest(directory, refused->below_step, &refused->reasons,
                                 options.resume == ResumeMode::kAuto ? nullptr : &beginning);
  // The next call refuses none of these again.
  refused->below_step = reader.ok() ? reader->info().step + 1 : 0;
  if (reader.ok()) return {absl::OkStatus(), Origin::kOwnDirectory, reader->info().step};
  if (!absl::IsNotFound(reader.status())) return {reader.status()};
  if (refused->reasons.empty()) return {};
  return {absl::DataLossError(
      absl::StrCat("none of the ", refused->reasons.size(), " checkpoints in ", directory,
                   " is whole; the newest: ", refused->reasons[0],
                   ". To begin anew, give another --checkpoint-dir or remove them"))};
}

CheckpointChoice ChooseNamed(const TrainOptions& options) {
  const std::string& path = options.resume_directory;
  const auto reader = CheckpointReader::Open(path);
  if (reader.ok()) return {absl::OkStatus(), Origin::kNamed, reader->info().step};
  if (!absl::IsNotFound(reader.status())) return {reader.status()};
  const absl::StatusOr<std::vector<std::string>> inside = ListCheckpoints(path);
  return {absl::NotFoundError(absl::StrCat(
      "--resume ", path, " is no checkpoint: it has no file \"manifest\". ",
      inside.ok() && !inside->empty()
          ? absl::StrCat("It holds ", inside->size(), ", the newest is ", inside->front(),
                         ": give that, or --checkpoint-dir ", path, " with --resume auto")
          : "Give the directory of one, such as CHECKPOINT_DIR/step_00000100, or --resume auto for "
            "the newest in --checkpoint-dir"))};
}

// Finds checkpoints of another run after `step`. A checkpoint that does not open is nobody's loss.
absl::Status RefuseOthers(const TrainOptions& options, int64_t step) {
  const std::string beginning = BeganWith(options);
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> found, ListSteps(options.checkpoint_dir));
  for (const int64_t other : found) {
    if (other <= step) break;
    const auto reader = CheckpointReader::Open(StepDirectory(options.checkpoint_dir, other));
    if (!reader.ok() || reader->info().began_with == beginning) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        options.checkpoint_dir, " already holds checkpoints up to step ", other,
        " of a run that did not begin with --resume ", beginning,
        reader->info().began_with.empty() ? " (or that an older build saved)" : "",
        ", and this run is to go on after step ", step,
        ": it would write over them. Give another --checkpoint-dir, remove them, or let --resume "
        "auto go on with them"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string BeganWith(const TrainOptions& options) {
  switch (options.resume) {
    case ResumeMode::kAuto:
      return "";
    case ResumeMode::kNone:
      return "none";
    case ResumeMode::kDirectory:
      return options.resume_directory;
  }
  return "";
}

std::string PathOf(const TrainOptions& options, const CheckpointChoice& choice) {
  if (choice.origin == Origin::kNothing) return "";
  return choice.origin == Origin::kNamed ? options.resume_directory
                                         : StepDirectory(options.checkpoint_dir, choice.step);
}

CheckpointChoice ChooseCheckpoint(const TrainOptions& options, Refused* refused) {
  CheckpointChoice first;
  if (options.resume == ResumeMode::kDirectory) first = ChooseNamed(options);
  if (options.checkpoint_dir.empty()) return first;
  CheckpointChoice choice = ChooseOwn(options, first.step, refused);
  if (choice.status.ok() && choice.origin == Origin::kNothing) choice = first;
  if (choice.status.ok() && options.resume != ResumeMode::kAuto) {
    choice.status = RefuseOthers(options, choice.step);
  }
  return choice;
}

}  // namespace convene::worker
