#include "agent/hang/timer_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/output/last_lines.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

constexpr size_t kMostProcesses = 1024;

// Takes away the FIFO of a killed agent.
absl::Status TakeAwayOldOne(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return absl::OkStatus();
  if (!S_ISFIFO(info.st_mode)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " is there already and is no FIFO"));
  }
  const UniqueFd reader(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (reader.valid()) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is read by another process, such as another agent on this machine"));
  }
  unlink(path.c_str());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TimerFile>> TimerFile::Create(EventLoop& loop,
                                                             const std::string& path,
                                                             Listener listener) {
  CONVENE_RETURN_IF_ERROR(TakeAwayOldOne(path));
  if (mkfifo(path.c_str(), 0600) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no FIFO can be made at ", path, ": ", std::strerror(errno)));
  }
  // The FIFO is opened for writing too, so that reading never meets its end when workers close it.
  UniqueFd fifo(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fifo.valid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<TimerFile>(
      new TimerFile(loop, path, std::move(fifo), std::move(listener)));
}

TimerFile::TimerFile(EventLoop& loop, std::string path, UniqueFd fifo, Listener listener)
    : loop_(loop),
      path_(std::move(path)),
      fifo_(std::move(fifo)),
      listener_(std::move(listener)),
      timer_(loop, [this] { OnTime(); }) {
  loop_.Watch(fifo_.get(), [this] { OnReadable(); });
}

TimerFile::~TimerFile() {
  for (const auto& [pid, process] : processes_) loop_.Forget(process.fd.get());
  loop_.Forget(fifo_.get());
  unlink(path_.c_str());
}

void TimerFile::OnReadable() {
  char bytes[16 * PIPE_BUF];
  const ssize_t count = read(fifo_.get(), bytes, sizeof(bytes));
  if (count <= 0) return;
  // Each request is written at once and so is whole, but a read may end within one: the next read
  // has its rest.
  unfinished_.append(bytes, static_cast<size_t>(count));
  size_t begin = 0;
  for (size_t end; (end = unfinished_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    OnLine(unfinished_.substr(begin, end - begin));
  }
  unfinished_.erase(0, begin);
  if (unfinished_.size() > PIPE_BUF) OnLine(std::exchange(unfinished_, ""));
  SetTimer();
}

void TimerFile::OnLine(const std::string& line) {
  const std::optional<TimerRequest> request = ParseTimerRequest(line);
  if (!request.has_value()) {
    if (!std::exchange(has_told_of_nonsense_, true)) {
      listener_.on_log(
          absl::StrCat("timers: a line on ", path_,
                       " is no timer request of PyTorch's: ", Utf8(line, LastLines::kLongestLine)));
    }
    return;
  }
  if (request->expires.has_value() && !Know(request->pid)) return;
  // PyTorch writes the time of day; it is turned into a remaining time at once.
  if (!table_.Apply(*request, WallNow(), Clock::Real().Now()) &&
      !std::exchange(has_told_of_excess_, true)) {
    listener_.on_log(absl::StrCat("timers: more than ", TimerTable::kMostTimers,
                                  " at once; further timers do not count"));
  }
}

bool TimerFile::Know(int64_t pid) {
  if (processes_.count(pid) > 0) return true;
  const bool has_room = processes_.size() < kMostProcesses;
  UniqueFd fd(has_room ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1);
  if (!fd.valid()) {
    const bool is_gone = has_room && errno == ESRCH;
    if (!is_gone && !std::exchange(has_told_of_excess_, true)) {
      listener_.on_log(
          absl::StrCat("timers: process ", pid, " cannot be watched, its timers do not count: ",
                       has_room ? std::strerror(errno) : "too many processes have some"));
    }
    return false;
  }
  loop_.Watch(fd.get(), [this, pid] { Forget(pid); });
  processes_[pid] = {std::move(fd)};
  return true;
}

void TimerFile::Forget(int64_t pid) {
  table_.Forget(pid);
  const auto found = processes_.find(pid);
  if (found == processes_.end()) return;
  loop_.Forget(found->second.fd.get());
  processes_.erase(found);
}

void TimerFile::OnTime() {
  for (const TimerTable::Expired& expired : table_.TakeExpired(Clock::Real().Now())) {
    listener_.on_log(absl::StrCat(
        "process ", expired.pid, ": its timer \"", Utf8(expired.scope, LastLines::kLongestLine),
        "\" is over", expired.signal > 0 ? "" : "; it has no signal, so nothing is done"));
    const auto found = processes_.find(expired.pid);
    if (expired.signal == 0 || found == processes_.end()) continue;
    found->second.signal = expired.signal;
    listener_.on_expired(expired);
  }
  SetTimer();
}

void TimerFile::Reap(int64_t pid) {
  const auto found = processes_.find(pid);
  if (found == processes_.end()) return;
  const int signal = std::exchange(found->second.signal, 0);
  if (signal == 0) return;
  if (syscall(SYS_pidfd_send_signal, found->second.fd.get(), signal, nullptr, 0) != 0 &&
      errno != ESRCH) {
    listener_.on_log(
        absl::StrCat("timers: no signal can be sent to process ", pid, ": ", std::strerror(errno)));
  }
}

void TimerFile::SetTimer() {
  const MonotonicTime next = table_.next_due();
  if (next == MonotonicTime::InfiniteFuture()) return timer_.Cancel();
  timer_.Set(std::max(next - Clock::Real().Now(), absl::Nanoseconds(1)));
}

}  // namespace convene::agent
