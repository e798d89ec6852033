// WriteShard.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/random.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

absl::Status Validate(int64_t step, int rank, const std::vector<PieceToWrite>& pieces) {
  if (step < 0 || rank < 0) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, ", rank ", rank));
  }
  for (const PieceToWrite& item : pieces) {
    if (item.piece.flat_count > 0) CONVENE_RETURN_IF_ERROR(ValidatePiece(item.piece, item.data));
  }
  return absl::OkStatus();
}

absl::Status MakeStepDirectory(const std::string& directory, const std::string& step_directory) {
  // A plain file of this name never was a checkpoint, and what a link leads to is not this run's.
  // Another rank may have made the directory by now; unlink does not remove it.
  struct stat info;
  if (lstat(step_directory.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) {
    unlink(step_directory.c_str());
  }
  const bool directory_is_new = access(directory.c_str(), F_OK) != 0;
  CONVENE_RETURN_IF_ERROR(MakeDirectories(step_directory));
  if (directory_is_new) CONVENE_RETURN_IF_ERROR(SyncDirectory(ParentDirectory(directory)));
  return SyncDirectory(directory);
}

// So much goes to the disk at a time. A file that is left to the page cache is written all at once
// by its fsync, which nobody can end or see the progress of.
constexpr int64_t kBlockBytes = 32 << 20;

// Appends aligned chunks to a data file and notes where they lie.
class DataFileWriter {
 public:
  DataFileWriter(UniqueFd fd, std::string path, Manifest* index, ShardWrite* write)
      : fd_(std::move(fd)), path_(std::move(path)), index_(index), write_(write) {}

  absl::Status WriteBytes(absl::string_view bytes) {
    CONVENE_RETURN_IF_ERROR(WriteAll(fd_.get(), bytes, path_));
    position_bytes_ += static_cast<int64_t>(bytes.size());
    PushOut();
    return absl::OkStatus();
  }

  absl::Status WritePiece(const PieceToWrite& item) {
    for (int64_t done = 0; done < item.piece.flat_count; done += kMaxChunkElements) {
      TensorPiece chunk = item.piece;
      chunk.flat_begin += done;
      chunk.flat_count = std::min(kMaxChunkElements, item.piece.flat_count - done);
      const ConstElements data = item.data.Slice(done, chunk.flat_count);
      CONVENE_RETURN_IF_ERROR(WriteChunk(std::move(chunk), data));
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    index_->files[0].bytes = position_bytes_;
    return SyncFile(fd_.get(), path_);
  }

 private:
  // Begins to write the last whole block to the disk, and waits for the one before. Errors come
  // again with the fsync.
  void PushOut() {
    if (position_bytes_ - begun_bytes_ < kBlockBytes) return;
    (void)sync_file_range(fd_.get(), begun_bytes_, position_bytes_ - begun_bytes_,
                          SYNC_FILE_RANGE_WRITE);
    (void)sync_file_range(
        fd_.get(), 0, begun_bytes_,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    begun_bytes_ = position_bytes_;
  }

  absl::Status WriteChunk(TensorPiece chunk, const ConstElements& data) {
    if (write_ != nullptr && write_->is_given_up) {
      return absl::CancelledError("given up for a later checkpoint");
    }
    const std::string padding(-position_bytes_ & (kChunkAlignmentBytes - 1), '\0');
    if (!padding.empty()) CONVENE_RETURN_IF_ERROR(WriteBytes(padding));
    const absl::string_view bytes(static_cast<const char*>(data.data), data.size_bytes());
    index_->places.push_back(
        {0, position_bytes_, XXH3_64bits(bytes.data(), bytes.size()), data.dtype});
    index_->pieces.push_back(std::move(chunk));
    CONVENE_RETURN_IF_ERROR(WriteBytes(bytes));
    if (write_ != nullptr) write_->bytes += static_cast<int64_t>(bytes.size());
    return absl::OkStatus();
  }

  const UniqueFd fd_;
  const std::string path_;
  Manifest* const index_;
  ShardWrite* const write_;  // may be null
  int64_t position_bytes_ = 0;
  int64_t begun_bytes_ = 0;  // on their way to the disk
};

// The data file, then the index: an index on the disk means that its data file is whole.
// WriteFileAtomic's fsync of the directory makes both names durable.
absl::Status WriteDataThenIndex(const std::string& step_directory, int64_t step, int rank,
                                const std::vector<PieceToWrite>& pieces, ShardWrite* write) {
  const uint64_t attempt = RandomU64();
  Manifest index;
  index.info.step = step;
  index.files.push_back({DataName(rank, attempt), 0});
  const std::string path = absl::StrCat(step_directory, "/", index.files[0].name);
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
  DataFileWriter writer(std::move(fd), path, &index, write);
  CONVENE_RETURN_IF_ERROR(writer.WriteBytes(DataHeader(step, rank, attempt)));
  for (const PieceToWrite& item : pieces) CONVENE_RETURN_IF_ERROR(writer.WritePiece(item));
  CONVENE_RETURN_IF_ERROR(writer.Finish());
  return WriteFileAtomic(absl::StrCat(step_directory, "/", IndexName(rank)),
                         EncodeManifest(ManifestKind::kShardIndex, index));
}

absl::Status RemoveRanksRemains(const std::string& step_directory, int rank) {
  const absl::StatusOr<std::set<std::string>> published = PublishedDataFiles(step_directory);
  // Where the manifest may not be read, all files stay until PublishCheckpoint replaces them.
  if (absl::IsPermissionDenied(published.status())) return absl::OkStatus();
  if (!published.ok()) return published.status();
  return RemoveFilesBut(step_directory, RankPrefix(rank), *published);
}

}  // namespace

absl::Status WriteShard(const std::string& directory, int64_t step, int rank,
                        const std::vector<PieceToWrite>& pieces, ShardWrite* write) {
  CONVENE_RETURN_IF_ERROR(Validate(step, rank, pieces));
  const std::string step_directory = StepDirectory(directory, step);
  CONVENE_RETURN_IF_ERROR(MakeStepDirectory(directory, step_directory));
  CONVENE_RETURN_IF_ERROR(RemoveRanksRemains(step_directory, rank));
  absl::Status status = WriteDataThenIndex(step_directory, step, rank, pieces, write);
  if (status.ok()) return status;
  // The first error is the one worth telling; the next attempt removes files that cannot be removed
  // now. The directory stays: another rank may be about to write into it, and would be blamed.
  RemoveRanksRemains(step_directory, rank).IgnoreError();
  return Annotate(status, absl::StrCat("checkpoint of step ", step, ", rank ", rank));
}

}  // namespace convene::worker
