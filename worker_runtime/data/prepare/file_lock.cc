#include "worker_runtime/data/prepare/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

// Whether `path` is still the file that `fd` is open on. An owner that removed its file leaves a
// lock that excludes nobody.
bool IsAt(const std::string& path, int fd) {
  struct stat by_path, by_fd;
  return stat(path.c_str(), &by_path) == 0 && fstat(fd, &by_fd) == 0 &&
         by_path.st_ino == by_fd.st_ino && by_path.st_dev == by_fd.st_dev;
}

}  // namespace

absl::StatusOr<UniqueFd> LockFile(const std::string& path, absl::Duration timeout, Clock* clock) {
  const MonotonicTime deadline = clock->Now() + timeout;
  while (true) {
    CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT));
    const bool is_locked = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (is_locked && IsAt(path, fd.get())) return fd;
    if (!is_locked && errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("lock ", path));
    }
    if (clock->Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "data: waited ", absl::FormatDuration(timeout), " for the process that holds ", path,
          " to make the token file; see who it is with: fuser ", path));
    }
    if (!is_locked) clock->SleepFor(kPollInterval);
  }
}

}  // namespace convene::worker
