#include "worker_runtime/data/store/file_lock.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr absl::Duration kSayInterval = absl::Seconds(1);
// A shorter wait is not worth a line.
constexpr absl::Duration kUntold = absl::Seconds(5);
constexpr size_t kSayingBytesMax = 512;

// The text of a lock file: "DONE TOTAL process 4711 on node-7". The numbers have all their zeros,
// so that each text covers the one before it.
struct Saying {
  int64_t done = 0, total = 0;
  std::string who = "a process that does not say who it is";
  friend bool operator==(const Saying&, const Saying&) = default;
};

// Nothing is said where the file cannot be read.
Saying ReadSaying(int fd) {
  std::string text(kSayingBytesMax, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(n > 0 ? n : 0);
  const std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Saying saying;
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &saying.done) ||
      !absl::SimpleAtoi(words[1], &saying.total)) {
    return Saying();
  }
  saying.who = Utf8(words[2]);
  return saying;
}

}  // namespace

bool IsFileAt(const std::string& path, int fd) {
  struct stat by_path, by_fd;
  return stat(path.c_str(), &by_path) == 0 && fstat(fd, &by_fd) == 0 &&
         by_path.st_ino == by_fd.st_ino && by_path.st_dev == by_fd.st_dev;
}

absl::StatusOr<FileLock> FileLock::Take(const std::string& path, const Wait& wait) {
  const MonotonicTime begin = wait.clock->Now();
  MonotonicTime last_news = begin;
  Saying heard;
  bool is_told = false;
  while (true) {
    CONVENE_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_RDWR | O_CREAT));
    const bool is_locked = flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (is_locked && IsFileAt(path, fd.get())) {
      // An earlier holder's text.
      if (ftruncate(fd.get(), 0) != 0) return ErrnoStatus(errno, absl::StrCat("cut ", path));
      FileLock lock(std::move(fd), wait.clock);
      lock.Say(0, 0);
      return lock;
    }
    if (is_locked) continue;
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return ErrnoStatus(errno, absl::StrCat("lock ", path));
    }
    const MonotonicTime now = wait.clock->Now();
    if (const Saying saying = ReadSaying(fd.get()); saying != heard) {
      heard = saying;
      last_news = now;
      if (wait.progress && heard.done < heard.total) wait.progress(heard.done, heard.total);
    }
    if (now - last_news >= wait.silence_max) {
      const std::string held = absl::StrCat(path, " is held by ", heard.who, ", which has read ",
                                            heard.done, " of ", heard.total, " bytes");
      // A caller that did not wait cannot tell whether the holder hangs.
      if (wait.silence_max == absl::ZeroDuration()) return absl::DeadlineExceededError(held);
      return absl::DeadlineExceededError(
          absl::StrCat(held, " and came no further within ", absl::FormatDuration(wait.silence_max),
                       "; if it hangs, end it: the next call goes on"));
    }
    if (!is_told && now - begin >= kUntold) {
      is_told = true;
      spdlog::info("data: waiting for {}, which makes the token file (it holds {})", heard.who,
                   path);
    }
    wait.clock->SleepFor(kPollInterval);
  }
}

void FileLock::Say(int64_t done, int64_t total) {
  const MonotonicTime now = clock_->Now();
  if (now < next_) return;
  next_ = now + kSayInterval;
  const std::string text =
      absl::StrFormat("%020d %020d process %d on %s", done, total, getpid(), HostName());
  [[maybe_unused]] const ssize_t written = pwrite(fd_.get(), text.data(), text.size(), 0);
}

}  // namespace convene::worker
