#include "tools/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene {
namespace {

// Null in production. A pointer, so that the usual cost is one load.
std::atomic<const ScopedFileFault::Hook*> g_fault_hook{nullptr};

absl::Status FromErrorCode(const std::error_code& error, absl::string_view what) {
  return ErrnoStatus(error.value(), what);
}

absl::Status WriteSyncRename(int fd, const std::string& temporary, const std::string& path,
                             absl::string_view content) {
  CONVENE_RETURN_IF_ERROR(WriteAll(fd, content, temporary));
  CONVENE_RETURN_IF_ERROR(SyncFile(fd, temporary));
  CONVENE_RETURN_IF_ERROR(RenameFile(temporary, path));
  return SyncDirectory(ParentDirectory(path));
}

}  // namespace

ScopedFileFault::ScopedFileFault(Hook hook) {
  CONVENE_CHECK(g_fault_hook.load() == nullptr);
  g_fault_hook = new Hook(std::move(hook));
}

ScopedFileFault::~ScopedFileFault() { delete g_fault_hook.exchange(nullptr); }

int FileFault(FileOp op, const std::string& path) {
  const ScopedFileFault::Hook* hook = g_fault_hook.load(std::memory_order_acquire);
  return hook == nullptr ? 0 : (*hook)(op, path);
}

absl::StatusOr<UniqueFd> OpenFile(const std::string& path, int flags, mode_t mode) {
  if (const int error = FileFault(FileOp::kOpen, path)) {
    return ErrnoStatus(error, absl::StrCat("open ", path));
  }
  UniqueFd fd(open(path.c_str(), flags | O_CLOEXEC, mode));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return fd;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) return content;
    content.append(buffer, n);
  }
}

absl::Status WriteAll(int fd, absl::string_view content, const std::string& path) {
  if (const int error = FileFault(FileOp::kWrite, path)) {
    return ErrnoStatus(error, absl::StrCat("write ", path));
  }
  while (!content.empty()) {
    const ssize_t n = write(fd, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("write ", path));
    content.remove_prefix(n);
  }
  return absl::OkStatus();
}

absl::Status SyncFile(int fd, const std::string& path) {
  if (const int error = FileFault(FileOp::kSync, path)) {
    return ErrnoStatus(error, absl::StrCat("fsync ", path));
  }
  if (fsync(fd) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", directory));
  return SyncFile(fd.get(), directory);
}

absl::Status RenameFile(const std::string& from, const std::string& to) {
  if (const int error = FileFault(FileOp::kRename, to)) {
    return ErrnoStatus(error, absl::StrCat("rename ", from, " to ", to));
  }
  if (rename(from.c_str(), to.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename ", from, " to ", to));
  }
  return absl::OkStatus();
}

absl::Status WriteFileAtomic(const std::string& path, absl::string_view content) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  // Removes the file of an earlier process of this number. In a folder that everybody may write to,
  // the name can be guessed: a file or link that stands there is not written through.
  unlink(temporary.c_str());
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd,
                           OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW));
  absl::Status status = WriteSyncRename(fd.get(), temporary, path, content);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return FromErrorCode(error, absl::StrCat("create directory ", path));
  return absl::OkStatus();
}

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator it(directory, error), end;
  while (!error && it != end) {
    names.push_back(it->path().filename().string());
    it.increment(error);
  }
  if (error) return FromErrorCode(error, absl::StrCat("list ", directory));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return FromErrorCode(error, absl::StrCat("remove ", path));
  return absl::OkStatus();
}

std::string ParentDirectory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace convene
