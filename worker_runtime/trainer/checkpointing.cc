#include "worker_runtime/trainer/checkpointing.h"

#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "spdlog/spdlog.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

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

struct Choice {
  absl::Status status;
  double step = -1;  // -1: nothing to resume from
  std::string path;
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

Choice ChooseCheckpoint(const TrainOptions& options) {
  if (!options.checkpoint_dir.empty()) {
    const absl::Status writable = MakeWritable(options.checkpoint_dir);
    if (!writable.ok()) return {writable};
  }
  if (options.resume == ResumeMode::kDirectory) {
    const auto reader = CheckpointReader::Open(options.resume_directory);
    if (!reader.ok()) return {reader.status()};
    return {reader->Verify(), static_cast<double>(reader->info().step), options.resume_directory};
  }
  if (options.resume == ResumeMode::kNone || options.checkpoint_dir.empty()) return {};
  std::vector<std::string> refused;
  const auto reader = OpenNewestWhole(options.checkpoint_dir, &refused);
  for (const std::string& reason : refused) spdlog::warn("checkpoint refused: {}", reason);
  if (absl::IsNotFound(reader.status())) return {};
  if (!reader.ok()) return {reader.status()};
  return {absl::OkStatus(), static_cast<double>(reader->info().step), reader->path()};
}

absl::StatusOr<CheckpointInfo> Load(const TrainOptions& options, const std::string& path,
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

absl::StatusOr<std::optional<CheckpointInfo>> RestoreCheckpoint(const TrainOptions& options,
                                                                ShardedOptimizer& optimizer,
                                                                Collective& world, Stream& stream) {
  Choice choice;
  if (world.rank() == 0) choice = ChooseCheckpoint(options);
  CONVENE_RETURN_IF_ERROR(Agree(choice.status, "open the checkpoint", world, stream));
  CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(&choice.step, 1), ReduceOp::kMax, stream));
  if (choice.step < 0) return std::nullopt;
  const std::string path =
      options.resume == ResumeMode::kDirectory
          ? options.resume_directory
          : StepDirectory(options.checkpoint_dir, static_cast<int64_t>(choice.step));
  const auto loaded = Load(options, path, optimizer);
  CONVENE_RETURN_IF_ERROR(Agree(loaded.status(), "load the checkpoint", world, stream));
  CONVENE_RETURN_IF_ERROR(optimizer.GatherParameters(stream));
  return *loaded;
}

}  // namespace convene::worker
