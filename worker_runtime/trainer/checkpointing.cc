#include "worker_runtime/trainer/checkpointing.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "spdlog/spdlog.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kOtherJobsTimeToEnd = absl::Seconds(5);
constexpr absl::Duration kPredecessorsTimeToEnd = absl::Minutes(2);

// All ranks leave with an error when one has one: the lowest such rank is named to the others.
absl::Status Agree(const absl::Status& mine, const char* deed, Collective& world, Stream& stream) {
  double blamed = mine.ok() ? 0 : world.size() - world.rank();
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(&blamed, 1), ReduceOp::kMax, stream));
  if (!mine.ok()) return mine;
  if (blamed == 0) return absl::OkStatus();
  // Aborted: this rank is not the one to blame; its agent reports the other.
  return absl::AbortedError(
      absl::StrCat("rank ", world.size() - static_cast<int>(blamed), " could not ", deed));
}

// Where to begin. One number each, so that rank 0 can tell the others by an all-reduce.
enum class Source { kNothing = 0, kOwnDirectory = 1, kNamed = 2 };

struct Choice {
  absl::Status status;
  Source source = Source::kNothing;
  int64_t step = 0;  // of kOwnDirectory
};

// Now, not after the steps up to the first checkpoint.
absl::Status MakeWritable(const std::string& directory) {
  absl::Status status = MakeDirectories(directory);
  if (status.ok() && access(directory.c_str(), W_OK | X_OK) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("write to ", directory));
  }
  if (status.ok()) return status;
  return Annotate(status, "--checkpoint-dir cannot take checkpoints; give another");
}

absl::StatusOr<DirectoryLock> Claim(const TrainOptions& options, const JobIdentity& job) {
  CONVENE_RETURN_IF_ERROR(MakeWritable(options.checkpoint_dir));
  const auto warn = [](const std::string& text) { spdlog::warn("{}", text); };
  absl::StatusOr<DirectoryLock> lock = DirectoryLock::Acquire(
      options.checkpoint_dir,
      {.job = job.name,
       .wait_timeout = std::min(job.is_restart ? kPredecessorsTimeToEnd : kOtherJobsTimeToEnd,
                                options.checkpoint_timeout / 2),
       .on_wait = warn,
       .on_unlocked = warn});
  if (!absl::IsAlreadyExists(lock.status())) return lock;
  const std::string text = absl::StrCat(
      lock.status().message(), ": give this job another --checkpoint-dir, or stop that one");
  if (job.is_restart) return absl::DeadlineExceededError(text);
  return absl::AlreadyExistsError(text);
}

Choice ChooseNewest(const std::string& directory) {
  std::vector<std::string> refused;
  const auto reader = OpenNewestWhole(directory, &refused);
  for (const std::string& reason : refused) spdlog::warn("checkpoint refused: {}", reason);
  if (absl::IsNotFound(reader.status())) return {};
  if (!reader.ok()) return {reader.status()};
  return {absl::OkStatus(), Source::kOwnDirectory, reader->info().step};
}

// A restart takes the newest checkpoint in `directory` for the job's own.
absl::Status RefuseLaterCheckpoints(const TrainOptions& options, int64_t first_step) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(options.checkpoint_dir));
  if (steps.empty() || steps.front() <= first_step) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(options.checkpoint_dir, " already holds checkpoints up to step ", steps.front(),
                   ", and this run is to begin after step ", first_step,
                   ": after a restart they could not be told from its own. Give another "
                   "--checkpoint-dir, remove "
                   "them, or leave --resume at auto"));
}

Choice ChooseNamed(const TrainOptions& options) {
  const auto reader = CheckpointReader::Open(options.resume_directory);
  if (!reader.ok()) return {reader.status()};
  return {reader->Verify(), Source::kNamed, reader->info().step};
}

Choice ChooseCheckpoint(const TrainOptions& options, bool is_restart) {
  const bool saves = !options.checkpoint_dir.empty();
  if (saves && (is_restart || options.resume == ResumeMode::kAuto)) {
    Choice own = ChooseNewest(options.checkpoint_dir);
    if (!own.status.ok() || own.source != Source::kNothing) return own;
  }
  Choice choice;
  if (options.resume == ResumeMode::kDirectory) choice = ChooseNamed(options);
  if (choice.status.ok() && saves && !is_restart && options.resume != ResumeMode::kAuto) {
    choice.status = RefuseLaterCheckpoints(options, choice.step);
  }
  return choice;
}

// OK with a warning to log, "" when all is well.
absl::StatusOr<std::string> CompareData(const std::string& path, const std::string& trained_on,
                                        const std::string& data, bool accept_new_data) {
  if (trained_on == data) return std::string();
  if (trained_on.empty()) {
    return absl::StrCat(path, " does not say what data it was trained on (an earlier version of ",
                        "this program wrote it); going on with ", data);
  }
  if (accept_new_data) {
    return absl::StrCat(path, " was trained on ", trained_on, "; going on with ", data,
                        ", as --accept-new-data says");
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path, " was trained on ", trained_on, "; --data now gives ", data,
      ": the sample order would break. Give the data that it was trained on, or --accept-new-data "
      "to go on with this"));
}

absl::StatusOr<CheckpointInfo> Load(const TrainOptions& options, const JobIdentity& job,
                                    const std::string& path, bool is_speaker,
                                    ShardedOptimizer& optimizer) {
  CONVENE_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(path));
  const CheckpointInfo& info = reader.info();
  if (info.model != ShapeText(options.model)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " holds a model of shape ", info.model, ", not ", ShapeText(options.model),
        "; give the --model it was trained with, or another --checkpoint-dir"));
  }
  if (info.seed != options.seed) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was trained with --seed ", info.seed, ", not ", options.seed,
                     ": the sample order would change; give that seed, or --resume none with "
                     "another --checkpoint-dir"));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::string warning,
                           CompareData(path, info.data, job.data, options.accept_new_data));
  if (is_speaker && !warning.empty()) spdlog::warn("{}", warning);
  CONVENE_RETURN_IF_ERROR(reader.Read(optimizer.PiecesToRead()));
  return info;
}

}  // namespace

std::string ShapeText(const ModelConfig& c) {
  return absl::StrCat("layers ", c.layers, " hidden ", c.hidden_size, " ffn ", c.ffn_size,
                      " heads ", c.heads, "/", c.kv_heads, "x", c.head_size, " vocabulary ",
                      c.vocabulary_size, " theta ", c.rope_theta, " epsilon ", c.norm_epsilon,
                      c.tied_embeddings ? " tied" : " untied");
}

absl::Status SaveCheckpoint(const std::string& directory, const CheckpointInfo& info, int keep,
                            const ShardedOptimizer& optimizer, Collective& world, Stream& stream) {
  const absl::Status written =
      WriteShard(directory, info.step, world.rank(), optimizer.PiecesToWrite());
  const absl::Status all_written =
      Agree(written, "write its part of the checkpoint", world, stream);
  absl::Status published;
  if (world.rank() == 0) {
    if (all_written.ok()) {
      published = PublishCheckpoint(directory, info);
      const absl::Status removed =
          published.ok() ? RemoveOldCheckpoints(directory, info.step, keep) : absl::OkStatus();
      // This checkpoint exists all the same; the next one tries again.
      if (!removed.ok()) spdlog::warn("old checkpoints stay: {}", removed.ToString());
    } else {
      const absl::Status discarded = DiscardUnpublished(directory, info.step);
      if (!discarded.ok()) spdlog::warn("after a failed checkpoint: {}", discarded.ToString());
    }
  }
  CONVENE_RETURN_IF_ERROR(all_written);
  return Agree(published, "publish the checkpoint", world, stream);
}

absl::StatusOr<std::optional<DirectoryLock>> ClaimCheckpointDirectory(const TrainOptions& options,
                                                                      const JobIdentity& job,
                                                                      Collective& world,
                                                                      Stream& stream) {
  std::optional<DirectoryLock> lock;
  absl::Status status;
  if (world.rank() == 0 && !options.checkpoint_dir.empty()) {
    absl::StatusOr<DirectoryLock> claimed = Claim(options, job);
    status = claimed.status();
    if (claimed.ok()) lock = *std::move(claimed);
  }
  CONVENE_RETURN_IF_ERROR(Agree(status, "have the checkpoint directory for itself", world, stream));
  return lock;
}

absl::StatusOr<std::optional<Restored>> RestoreCheckpoint(const TrainOptions& options,
                                                          const JobIdentity& job,
                                                          ShardedOptimizer& optimizer,
                                                          Collective& world, Stream& stream) {
  Choice choice;
  if (world.rank() == 0) choice = ChooseCheckpoint(options, job.is_restart);
  CONVENE_RETURN_IF_ERROR(Agree(choice.status, "open the checkpoint", world, stream));
  double told[] = {static_cast<double>(choice.source), static_cast<double>(choice.step)};
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(told), ReduceOp::kMax, stream));
  const Source source = static_cast<Source>(static_cast<int>(told[0]));
  if (source == Source::kNothing) return std::nullopt;
  const std::string path = source == Source::kNamed ? options.resume_directory
                                                    : StepDirectory(options.checkpoint_dir,
                                                                    static_cast<int64_t>(told[1]));
  const auto loaded = Load(options, job, path, world.rank() == 0, optimizer);
  CONVENE_RETURN_IF_ERROR(Agree(loaded.status(), "load the checkpoint", world, stream));
  CONVENE_RETURN_IF_ERROR(optimizer.GatherParameters(stream));
  return Restored{*loaded, path};
}

}  // namespace convene::worker
