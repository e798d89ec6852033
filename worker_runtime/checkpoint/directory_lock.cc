#include "worker_runtime/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
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

std::string LockPath(const std::string& directory) {
  return absl::StrCat(directory, "/", kLockName);
}

bool IsUnsupported(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

// flock(2) without a wait: 0, or errno.
int TryLock(int fd, int operation) {
  while (flock(fd, operation | LOCK_NB) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

std::string WordsOnHost() { return absl::StrCat(" on ", HostName(), ", job "); }

// The file's content: the job's name in a line of its own, then words for people. No two starts
// have the same.
std::string ContentFor(const std::string& job) {
  const std::string name = absl::CEscape(job);
  return absl::StrCat(name, "\nprocess ", getpid(), WordsOnHost(),
                      name.empty() ? "without a name" : name, ", since ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%E6S UTC", WallNow(), absl::UTCTimeZone()),
                      "\n");
}

// On the disk, since other machines are to read it, and this one may be lost.
absl::Status WriteContent(int fd, const std::string& content, const std::string& path) {
  if (ftruncate(fd, 0) != 0) return ErrnoStatus(errno, absl::StrCat("truncate ", path));
  CONVENE_RETURN_IF_ERROR(WriteAll(fd, content, path));
  return SyncFile(fd, path);
}

struct Holder {
  std::string job;  // escaped
  std::string words = "another process";
  bool is_elsewhere = false;  // on another machine
};

Holder HolderIn(absl::string_view content) {
  const std::pair<std::string, std::string> lines =
      absl::StrSplit(content, absl::MaxSplits('\n', 1));
  if (lines.second.empty()) return {};
  return {lines.first, absl::CEscape(absl::StripAsciiWhitespace(lines.second)),
          !absl::StrContains(lines.second, WordsOnHost())};
}

// The holder may not have written its words yet.
Holder ReadHolder(int fd) {
  char content[kHolderBytesMax];
  const ssize_t count = pread(fd, content, sizeof(content), 0);
  return count <= 0 ? Holder() : HolderIn(absl::string_view(content, count));
}

// A locked file in the place of the one that is there, whoever has locked that.
absl::StatusOr<UniqueFd> Replace(const std::string& path, const std::string& content) {
  const std::string made = absl::StrCat(path, ".", HostName(), ".", getpid());
  CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(made, O_RDWR | O_CREAT | O_NONBLOCK));
  absl::Status status;
  if (const int error = TryLock(fd.get(), LOCK_EX); error != 0) {
    status = ErrnoStatus(error, absl::StrCat("lock ", made));
  }
  if (status.ok()) status = WriteContent(fd.get(), content, made);
  if (status.ok()) status = RenameFile(made, path);
  if (status.ok()) return fd;
  unlink(made.c_str());
  return status;
}

}  // namespace

absl::Status DirectoryLock::Check() const {
  if (!is_held()) return absl::OkStatus();
  const absl::StatusOr<std::string> content = ReadFile(path_);
  // A person has removed it, and no other start has come since.
  if (absl::IsNotFound(content.status())) return absl::OkStatus();
  if (!content.ok()) return content.status();
  if (*content == content_) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(ParentDirectory(path_), " has been taken over by ",
                                         HolderIn(*content).words,
                                         ": this process writes nothing there any more"));
}

absl::StatusOr<DirectoryLock> LockDirectory(const std::string& directory,
                                            const DirectoryLockOptions& options) {
  const std::string path = LockPath(directory);
  const MonotonicTime start = options.clock->Now();
  bool has_told = false;
  for (;;) {
    // Anew each time, for another file may have taken its place. For writing, even while another
    // job holds it: NFS gives an exclusive lock on nothing else.
    CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT | O_NONBLOCK));
    const int error = TryLock(fd.get(), LOCK_EX);
    if (IsUnsupported(error)) {
      options.on_unlocked(absl::StrCat(ErrnoStatus(error, "lock " + path).message(),
                                       ": nothing will stop a second job from writing there"));
      return DirectoryLock();
    }
    if (error == 0) {
      const std::string content = ContentFor(options.job);
      CONVENE_RETURN_IF_ERROR(WriteContent(fd.get(), content, path));
      const absl::StatusOr<std::string> there = ReadFile(path);
      if (there.ok() && *there == content) return DirectoryLock(std::move(fd), path, content);
      if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
      options.clock->SleepFor(kPollInterval);
      continue;  // Meanwhile another file took the place of the one that is locked now.
    }
    if (error != EWOULDBLOCK) return ErrnoStatus(error, absl::StrCat("lock ", path));
    const Holder holder = ReadHolder(fd.get());
    const bool is_predecessor =
        options.is_restart && !options.job.empty() && holder.job == absl::CEscape(options.job);
    const absl::Duration timeout =
        is_predecessor || holder.is_elsewhere ? options.lost_machine_timeout : options.wait_timeout;
    const std::string text = absl::StrCat(directory, " is being written to by ", holder.words);
    if (options.clock->Now() - start >= timeout) {
      if (!is_predecessor) return absl::AlreadyExistsError(text);
      if (!options.has_own_name) return absl::DeadlineExceededError(text);
      options.on_wait(absl::StrCat(
          text, ", an earlier start of this job: it is given up, and its lock is replaced"));
      const std::string content = ContentFor(options.job);
      CONVENE_ASSIGN_OR_RETURN(fd, Replace(path, content));
      return DirectoryLock(std::move(fd), path, content);
    }
    if (!has_told) {
      has_told = true;
      options.on_wait(
          absl::StrCat(text, "; waiting up to ", absl::FormatDuration(timeout), " for it to end"));
    }
    options.clock->SleepFor(kPollInterval);
  }
}

std::string WriterOf(const std::string& directory) {
  const absl::StatusOr<UniqueFd> fd = OpenFile(LockPath(directory), O_RDONLY | O_NONBLOCK);
  if (!fd.ok() || TryLock(fd->get(), LOCK_SH) != EWOULDBLOCK) return "";
  return ReadHolder(fd->get()).words;
}

}  // namespace convene::worker
