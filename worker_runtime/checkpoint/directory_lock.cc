#include "worker_runtime/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
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

// The file's content: the job's name in a line of its own, then words for people.
absl::Status WriteHolder(int fd, const std::string& path, const std::string& job) {
  if (ftruncate(fd, 0) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", path));
  const std::string name = absl::CEscape(job);
  return WriteAll(
      fd,
      absl::StrCat(name, "\nprocess ", getpid(), " on ", HostName(), ", job ",
                   name.empty() ? "without a name" : name, ", since ",
                   absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", WallNow(), absl::UTCTimeZone()), "\n"),
      path);
}

struct Holder {
  std::string job;  // escaped
  std::string words = "another process";
};

// The holder may not have written its words yet.
Holder ReadHolder(int fd) {
  char content[kHolderBytesMax];
  const ssize_t count = pread(fd, content, sizeof(content), 0);
  if (count <= 0) return {};
  const std::pair<std::string, std::string> lines =
      absl::StrSplit(absl::string_view(content, count), absl::MaxSplits('\n', 1));
  if (lines.second.empty()) return {};
  return {lines.first, absl::CEscape(absl::StripAsciiWhitespace(lines.second))};
}

}  // namespace

absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory,
                                       const DirectoryLockOptions& options) {
  const std::string path = absl::StrCat(directory, "/", kLockName);
  // The file is opened for writing even while another job holds it: NFS gives an exclusive lock on
  // nothing else.
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT | O_NONBLOCK));
  const MonotonicTime start = options.clock->Now();
  bool has_told = false;
  while (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (IsUnsupported(error)) {
      options.on_unlocked(absl::StrCat(ErrnoStatus(error, "lock " + path).message(),
                                       ": nothing will stop a second job from writing there"));
      return UniqueFd();
    }
    if (error != EWOULDBLOCK) return ErrnoStatus(error, absl::StrCat("lock ", path));
    const Holder holder = ReadHolder(fd.get());
    const bool is_predecessor =
        options.is_restart && !options.job.empty() && holder.job == absl::CEscape(options.job);
    const absl::Duration timeout =
        is_predecessor ? options.predecessor_timeout : options.wait_timeout;
    const std::string text = absl::StrCat(directory, " is being written to by ", holder.words);
    if (options.clock->Now() - start >= timeout) {
      return is_predecessor ? absl::DeadlineExceededError(text) : absl::AlreadyExistsError(text);
    }
    if (!has_told) {
      has_told = true;
      options.on_wait(
          absl::StrCat(text, "; waiting up to ", absl::FormatDuration(timeout), " for it to end"));
    }
    options.clock->SleepFor(kPollInterval);
  }
  CONVENE_RETURN_IF_ERROR(WriteHolder(fd.get(), path, options.job));
  return fd;
}

}  // namespace convene::worker
