#include "worker_runtime/data/store/output_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/output_place.h"
#include "worker_runtime/data/store/token_file.h"

namespace convene::worker {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

// Not RemoveTree: a folder of this name is somebody's data.
absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("remove ", path));
}

}  // namespace

absl::Status OutputFile::Append(absl::string_view bytes) {
  buffer_.append(bytes.data(), bytes.size());
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : Flush();
}

absl::Status OutputFile::Flush() {
  CONVENE_RETURN_IF_ERROR(WriteAll(fd_.get(), buffer_, path_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status OutputFile::Close() {
  CONVENE_RETURN_IF_ERROR(Flush());
  CONVENE_RETURN_IF_ERROR(SyncFile(fd_.get(), path_));
  fd_.Reset();
  return absl::OkStatus();
}

OutputFiles::~OutputFiles() {
  for (const Name& name : names_) {
    // A killed process may have left the files beside its token file.
    TokenFileWriter::Discard(name.temporary);
    unlink(LockPathOf(name.path).c_str());
  }
}

absl::StatusOr<std::string> OutputFiles::Reserve(const std::string& path) {
  const std::string place = PlaceOfOutput(path);
  CONVENE_ASSIGN_OR_RETURN(FileLock lock, LockOutput(place));
  names_.push_back({place, absl::StrCat(place, ".partial.converted"), std::move(lock)});
  return names_.back().temporary;
}

absl::StatusOr<OutputFile*> OutputFiles::Create(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string temporary, Reserve(path));
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC));
  files_.push_back(std::make_unique<OutputFile>(std::move(fd), path));
  return files_.back().get();
}

absl::Status OutputFiles::Commit() {
  for (const std::unique_ptr<OutputFile>& file : files_) CONVENE_RETURN_IF_ERROR(file->Close());
  if (names_.size() > 1) {
    CONVENE_RETURN_IF_ERROR(RemoveFile(names_.back().path));
    for (const std::string& path : stale_) CONVENE_RETURN_IF_ERROR(RemoveFile(path));
  }
  for (size_t i = 0; i < names_.size(); ++i) {
    const absl::Status status = RenameFile(names_[i].temporary, names_[i].path);
    if (status.ok()) continue;
    for (size_t named = 0; named < i; ++named) unlink(names_[named].path.c_str());
    return status;
  }
  return SyncDirectory(ParentDirectory(names_.back().path));
}

}  // namespace convene::worker
