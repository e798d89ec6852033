// CheckpointReader.
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/manifest.h"
#include "worker_runtime/checkpoint/step_directory.h"

namespace convene::worker {
namespace {

// Reads chunks in ascending order, one at a time, each into the same buffer.
class ChunkReader {
 public:
  ChunkReader(const std::string& directory, const Manifest& manifest)
      : directory_(directory), manifest_(manifest) {}

  // The chunk's elements, checked; valid until the next call.
  absl::StatusOr<ConstElements> Load(int chunk) {
    const ChunkPlace& place = manifest_.places[chunk];
    const TensorPiece& piece = manifest_.pieces[chunk];
    CONVENE_RETURN_IF_ERROR(GoTo(place.file));
    const size_t bytes = piece.flat_count * SizeOf(place.dtype);
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    CONVENE_RETURN_IF_ERROR(ReadAt(place.offset_bytes, bytes, buffer_.data()));
    const uint64_t found = XXH3_64bits(buffer_.data(), bytes);
    if (found == place.checksum) {
      return ConstElements(buffer_.data(), piece.flat_count, place.dtype);
    }
    return absl::DataLossError(
        absl::StrCat(path_, ": chunk ", chunk, " (tensor '", piece.name, "', ", bytes, " bytes at ",
                     place.offset_bytes, ") has checksum ", absl::Hex(found, absl::kZeroPad16),
                     " instead of ", absl::Hex(place.checksum, absl::kZeroPad16)));
  }

 private:
  absl::Status GoTo(int file) {
    if (file == file_) return absl::OkStatus();
    const std::string& name = manifest_.files[file].name;
    path_ = absl::StrCat(directory_, "/", name);
    CONVENE_ASSIGN_OR_RETURN(fd_, OpenFile(path_, O_RDONLY));
    CONVENE_ASSIGN_OR_RETURN(const std::string expected, DataHeaderOf(manifest_.info.step, name));
    std::string header(expected.size(), '\0');
    CONVENE_RETURN_IF_ERROR(ReadAt(0, header.size(), header.data()));
    if (header != expected) {
      return absl::DataLossError(absl::StrCat(path_, " has the header of another file"));
    }
    file_ = file;
    return absl::OkStatus();
  }

  absl::Status ReadAt(int64_t offset_bytes, size_t bytes, void* target) {
    char* at = static_cast<char*>(target);
    while (bytes > 0) {
      const ssize_t n = pread(fd_.get(), at, bytes, offset_bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path_));
      if (n == 0) {
        return absl::DataLossError(
            absl::StrCat(path_, " ends at byte ", offset_bytes, ", ", bytes, " bytes too early"));
      }
      at += n;
      offset_bytes += n;
      bytes -= n;
    }
    return absl::OkStatus();
  }

  const std::string directory_;
  const Manifest& manifest_;
  int file_ = -1;  // the one that fd_ and path_ are
  std::string path_;
  UniqueFd fd_;
  std::vector<char> buffer_;
};

}  // namespace

CheckpointReader::CheckpointReader(std::string path, std::shared_ptr<const Manifest> manifest)
    : path_(std::move(path)), manifest_(std::move(manifest)) {}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& step_directory) {
  CONVENE_ASSIGN_OR_RETURN(Manifest manifest,
                           LoadManifest(ManifestKind::kManifest, step_directory, kManifestName));
  return CheckpointReader(step_directory, std::make_shared<const Manifest>(std::move(manifest)));
}

const CheckpointInfo& CheckpointReader::info() const { return manifest_->info; }

const std::vector<KeptFile>& CheckpointReader::tokenizer_files() const {
  return manifest_->tokenizer_files;
}

absl::StatusOr<std::string> CheckpointReader::TokenizerFolder() const {
  const std::string folder = absl::StrCat(path_, "/", KeptDirectory(tokenizer_files()));
  if (tokenizer_files().empty() || !IsDirectory(folder)) return std::string();
  CONVENE_RETURN_IF_ERROR(CheckKeptFiles(path_, tokenizer_files()));
  return folder;
}

absl::Status CheckpointReader::Read(const std::vector<PieceToRead>& pieces) const {
  ChunkReader chunks(path_, *manifest_);
  return FillPieces(pieces, path_, manifest_->pieces,
                    [&](int chunk) { return chunks.Load(chunk); });
}

absl::Status CheckpointReader::Verify() const {
  ChunkReader chunks(path_, *manifest_);
  for (size_t i = 0; i < manifest_->pieces.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(chunks.Load(static_cast<int>(i)).status());
  }
  return Annotate(CheckKeptFiles(path_, manifest_->tokenizer_files),
                  "the weights are whole, and the tokenizer is not");
}

}  // namespace convene::worker
