// Sharded checkpoints: each rank writes the pieces it owns, the manifest makes them one checkpoint,
// any layout reads it (FORMAT.md). One checkpoint of step N lives in `directory`/step_NNNNNNNN.
//
// A call may also return the errors of tools/base/files.h, with the path in the text.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/checkpoint/directory_lock.h"
#include "worker_runtime/checkpoint/kept_files.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/state_source.h"

namespace convene::worker {

// A WriteShard that is under way, as other threads see it and end it.
struct ShardWrite {
  std::atomic<int64_t> bytes = 0;  // of the pieces: written, and all but 64 MiB of them on the disk
  // WriteShard then returns Cancelled, unless all pieces are written already.
  std::atomic<bool> is_given_up = false;
};

// Step 1, every rank, in any order and at the same time: writes and fsyncs this rank's data file
// and index. Files that a crashed earlier attempt of this rank left at this step are removed first;
// a published checkpoint of the same step stays whole and readable until PublishCheckpoint replaces
// it. Pieces with flat_count 0 are skipped. ResourceExhausted when the disk is full. On any error
// this rank's files of this step are removed, and other checkpoints are untouched. InvalidArgument:
// ValidatePiece. One call per rank and step at a time. `write` may be null.
absl::Status WriteShard(const std::string& directory, int64_t step, int rank,
                        const std::vector<PieceToWrite>& pieces, ShardWrite* write = nullptr);

// Step 2, one rank, once all WriteShard calls of this attempt have returned OK: reads the
// world_size indexes, checks that the chunks tile every tensor exactly once, and publishes the
// manifest by rename. Only then does the checkpoint exist. Replaces an earlier checkpoint of the
// same step in that same rename. FailedPrecondition when a tensor is not tiled; NotFound when a
// rank's index is missing; DataLoss when an index is damaged or its data file too short. After an
// error the checkpoint may exist only when the fsync of a directory failed; calling again is safe.
//
// `tokenizer_files`: of the tokenizer that the info names; they come with the checkpoint.
//
// `lock` (null: none) of `directory` is checked last before the rename: where another start has
// taken it over, nothing is published. Aborted: DirectoryLock::Check.
absl::Status PublishCheckpoint(const std::string& directory, const CheckpointInfo& info,
                               absl::Span<const NamedFile> tokenizer_files = {},
                               const DirectoryLock* lock = nullptr);

// Instead of step 2, one rank, when WriteShard failed anywhere and no rank is writing any more:
// removes the files of all ranks. A checkpoint of this step that was published before stays.
absl::Status DiscardUnpublished(const std::string& directory, int64_t step);

// A published checkpoint that has been opened: its manifest parsed and checked. A cheap value;
// thread-safe.
class CheckpointReader final : public StateSource {
 public:
  // NotFound when there is no manifest: nothing was published here. DataLoss when the manifest is
  // damaged or no file, `step_directory` is no directory, or a data file is missing or shorter than
  // the manifest says. FailedPrecondition when a later version of this program wrote the
  // checkpoint. Reads no chunk.
  static absl::StatusOr<CheckpointReader> Open(const std::string& step_directory);

  const std::string& name() const override { return path_; }
  const CheckpointInfo& info() const override;

  // Checks each chunk's checksum before use; holds one chunk (at most 16 MiB) at a time. DataLoss
  // names the file, the chunk and both checksums.
  absl::Status Read(const std::vector<PieceToRead>& pieces) const override;

  // The files that a run's tokenizer and chat template have in this checkpoint.
  const std::vector<KeptFile>& tokenizer_files() const;
  // Their folder, after all of them were compared with their checksums. "" where there are none, or
  // where somebody has taken the folder away. DataLoss names the file that is damaged.
  absl::StatusOr<std::string> TokenizerFolder() const;

  // Reads all chunks and the tokenizer's files, and compares their checksums. Errors as Read's.
  absl::Status Verify() const;

 private:
  CheckpointReader(std::string path, std::shared_ptr<const Manifest> manifest);

  std::string path_;
  std::shared_ptr<const Manifest> manifest_;
};

// Keeps the `keep` >= 1 newest checkpoints of steps <= `newest_step` that CheckpointReader::Open
// and `check` accept. Removes the other ones, and unpublished or damaged remains that are older
// than the newest checkpoint kept. Later steps, which a resume may have refused, neither count nor
// are removed. Of a link to a checkpoint the link goes. Called by one rank, while no rank writes or
// reads an older step. InvalidArgument: keep < 1.
absl::Status RemoveOldCheckpoints(
    const std::string& directory, int64_t newest_step, int keep,
    absl::FunctionRef<absl::Status(const CheckpointReader&)> check = [](const CheckpointReader&) {
      return absl::OkStatus();
    });

// Directories in `directory` that hold a manifest, whole or not, newest step first. Empty when
// there is none (also when `directory` is absent).
absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& directory);

// A run that began with what it was told: its checkpoints name that, and are of no step before.
struct RunBeginning {
  std::string began_with;  // CheckpointInfo::began_with
  int64_t step = 0;
};

// The newest checkpoint of a step below `below_step` that opens, and is of `run` (null: of any).
// Appends "path: why" to `refused` for each newer one that does not open: damaged, unreadable, of a
// later format, or no directory at all; it may be of the run, unless its step is before the run's
// first. NotFound when no checkpoint opens. ResourceExhausted is returned at once: it says nothing
// about a checkpoint.
//
// Its chunks have not been read yet: when Read gives DataLoss on any rank, the caller asks for the
// next older checkpoint, with this one's step as `below_step`. All ranks together read every chunk,
// so nothing needs to be checked twice.
absl::StatusOr<CheckpointReader> OpenNewest(const std::string& directory, int64_t below_step,
                                            std::vector<std::string>* refused,
                                            const RunBeginning* run = nullptr);

}  // namespace convene::worker
