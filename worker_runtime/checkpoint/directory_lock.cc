#include "worker_runtime/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr char kLockName[] = "writer.lock";
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr size_t kHolderBytesMax = 512;

bool IsUnsupported(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

std::string OwnWords(const std::string& job) {
  return absl::StrCat("process ", getpid(), " on ", HostName(), ", job ",
                      job.empty() ? "without a name" : absl::CEscape(job), ", since ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", WallNow(), absl::UTCTimeZone()));
}

// What the holder wrote; it may not have come to it yet.
std::string HolderOf(int fd) {
  char words[kHolderBytesMax];
  const ssize_t count = pread(fd, words, sizeof(words), 0);
  if (count <= 0) return "another process";
  return absl::CEscape(absl::StripAsciiWhitespace(absl::string_view(words, count)));
}

absl::Status WriteHolder(int fd, const std::string& path, const std::string& job) {
  if (ftruncate(fd, 0) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", path));
  return WriteAll(fd, OwnWords(job) + "\n", path);
}

}  // namespace

absl::StatusOr<DirectoryLock> DirectoryLock::Acquire(const std::string& directory,
                                                     const DirectoryLockOptions& options) {
  const std::string path = absl::StrCat(directory, "/", kLockName);
  // For writing even while another holds it: NFS gives an exclusive lock on nothing else.
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  const MonotonicTime deadline = options.clock->Now() + options.wait_timeout;
  bool has_told = false;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (IsUnsupported(error)) {
      options.on_unlocked(absl::StrCat(ErrnoStatus(error, "lock " + path).message(),
                                       ": nothing will stop a second job from writing there"));
      return DirectoryLock(UniqueFd());
    }
    if (error != EWOULDBLOCK) return ErrnoStatus(error, absl::StrCat("lock ", path));
    if (options.clock->Now() >= deadline) {
      return absl::AlreadyExistsError(
          absl::StrCat(directory, " is being written to by ", HolderOf(fd.get())));
    }
    if (!has_told) {
      has_told = true;
      options.on_wait(absl::StrCat(directory, " is being written to by ", HolderOf(fd.get()),
                                   "; waiting up to ", absl::FormatDuration(options.wait_timeout),
                                   " for it to end"));
    }
    options.clock->SleepFor(kPollInterval);
  }
  CONVENE_RETURN_IF_ERROR(WriteHolder(fd.get(), path, options.job));
  return DirectoryLock(std::move(fd));
}

}  // namespace convene::worker
