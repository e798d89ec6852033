// The work that one rank does for all: publish, discard, list and remove.
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/reshard_plan.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

// Whether this status of a manifest means that nothing can ever be loaded from its step. Other
// errors (no permission, no descriptors, a later format) leave that open, and nothing may be
// removed because of them.
bool IsNoCheckpoint(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsDataLoss(status);
}

absl::Status AppendShard(const std::string& step_directory, int rank, Manifest* manifest) {
  CONVENE_ASSIGN_OR_RETURN(
      Manifest shard, LoadManifest(ManifestKind::kShardIndex, step_directory, IndexName(rank)));
  if (shard.info.step != manifest->info.step || shard.files.size() != 1) {
    return absl::DataLossError(absl::StrCat(step_directory, "/", IndexName(rank),
                                            " is the index of step ", shard.info.step, " and of ",
                                            shard.files.size(), " files"));
  }
  manifest->files.push_back(std::move(shard.files[0]));
  for (size_t i = 0; i < shard.pieces.size(); ++i) {
    manifest->pieces.push_back(std::move(shard.pieces[i]));
    manifest->places.push_back(shard.places[i]);
    manifest->places.back().file = rank;
  }
  return absl::OkStatus();
}

// Somebody linked a checkpoint into this directory. The checkpoint there is not this run's.
bool IsLink(const std::string& step_directory) {
  std::error_code error;
  return std::filesystem::is_symlink(step_directory, error);
}

absl::Status RemoveCheckpoint(const std::string& step_directory) {
  // The manifest goes first: a half-removed checkpoint must not look whole.
  if (IsDirectory(step_directory) && !IsLink(step_directory)) {
    CONVENE_RETURN_IF_ERROR(RemoveTree(absl::StrCat(step_directory, "/", kManifestName)));
  }
  return RemoveTree(step_directory);
}

}  // namespace

absl::Status PublishCheckpoint(const std::string& directory, const CheckpointInfo& info,
                               absl::Span<const NamedFile> tokenizer_files,
                               const DirectoryLock* lock) {
  if (info.step < 0 || info.world_size < 1 || info.samples_consumed < 0 || info.updates < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", info.step, ", world_size ", info.world_size, ", samples_consumed ",
                     info.samples_consumed, ", updates ", info.updates));
  }
  const std::string step_directory = StepDirectory(directory, info.step);
  Manifest manifest;
  manifest.info = info;
  manifest.tokenizer_files = MarksOf(tokenizer_files);
  std::set<std::string> keep = {kManifestName};
  for (int rank = 0; rank < info.world_size; ++rank) {
    CONVENE_RETURN_IF_ERROR(AppendShard(step_directory, rank, &manifest));
    keep.insert(IndexName(rank));
    keep.insert(manifest.files.back().name);
  }
  CONVENE_RETURN_IF_ERROR(Annotate(CheckTiling(manifest.pieces), step_directory));
  if (!tokenizer_files.empty()) {
    CONVENE_RETURN_IF_ERROR(WriteKeptFiles(directory, info.step, tokenizer_files));
    keep.insert(KeptDirectory(manifest.tokenizer_files));
  }
  const std::string path = absl::StrCat(step_directory, "/", kManifestName);
  // No file can be renamed to a place where a directory stands; such a directory was never
  // published.
  if (IsDirectory(path)) CONVENE_RETURN_IF_ERROR(RemoveTree(path));
  const std::string text = EncodeManifest(ManifestKind::kManifest, manifest);
  if (lock != nullptr) CONVENE_RETURN_IF_ERROR(lock->Check());
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(path, text));
  CONVENE_RETURN_IF_ERROR(SyncDirectory(directory));
  // Removes files of earlier attempts. The checkpoint exists even where that fails; the next
  // publication tries again.
  RemoveFilesBut(step_directory, "", keep).IgnoreError();
  return absl::OkStatus();
}

absl::Status DiscardUnpublished(const std::string& directory, int64_t step) {
  const std::string step_directory = StepDirectory(directory, step);
  if (IsLink(step_directory)) return absl::OkStatus();  // WriteShard has not written there
  CONVENE_ASSIGN_OR_RETURN(std::set<std::string> keep, PublishedDataFiles(step_directory));
  if (keep.empty()) return RemoveCheckpoint(step_directory);
  keep.insert(kManifestName);
  return RemoveFilesBut(step_directory, "", keep);
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& directory) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(directory));
  std::vector<std::string> checkpoints;
  for (const int64_t step : steps) {
    std::string path = StepDirectory(directory, step);
    if (access(absl::StrCat(path, "/", kManifestName).c_str(), F_OK) == 0) {
      checkpoints.push_back(std::move(path));
    }
  }
  return checkpoints;
}

absl::Status RemoveOldCheckpoints(const std::string& directory, int64_t newest_step, int keep,
                                  absl::FunctionRef<absl::Status(const CheckpointReader&)> check) {
  if (keep < 1) {
    return absl::InvalidArgumentError(absl::StrCat("at least 1 checkpoint is kept, not ", keep));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(directory));
  int kept = 0;
  for (const int64_t step : steps) {
    if (step > newest_step) continue;
    const std::string path = StepDirectory(directory, step);
    const absl::StatusOr<CheckpointReader> opened = CheckpointReader::Open(path);
    const bool may_stay = opened.ok() && kept < keep;
    const absl::Status status = may_stay ? check(*opened) : opened.status();
    if (may_stay && status.ok()) {
      ++kept;
    } else if (kept > 0 && (status.ok() || IsNoCheckpoint(status))) {
      CONVENE_RETURN_IF_ERROR(RemoveCheckpoint(path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointReader> OpenNewest(const std::string& directory, int64_t below_step,
                                            std::vector<std::string>* refused,
                                            const RunBeginning* run) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListSteps(directory));
  for (const int64_t step : steps) {
    if (step >= below_step) continue;
    if (run != nullptr && step < run->step) break;
    const std::string path = StepDirectory(directory, step);
    absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(path);
    if (reader.ok() && run != nullptr && reader->info().began_with != run->began_with) continue;
    if (reader.ok() || absl::IsResourceExhausted(reader.status())) return reader;
    if (absl::IsNotFound(reader.status())) continue;  // never published
    refused->push_back(absl::StrCat(path, ": ", reader.status().message()));
  }
  return absl::NotFoundError(absl::StrCat("no checkpoint that opens is in ", directory));
}

}  // namespace convene::worker
