#include "agent/workers/own_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/custody/process_table.h"
#include "tools/base/files.h"
#include "tools/base/signals.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

// REQUIRES: it does not control this session. Then processes that it controls are of another one,
// from which setsid(1) has led this command away.
bool IsAnothers(int fd) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return true;
  const unsigned minor = gnu_dev_minor(info.st_rdev);
  const auto number = static_cast<int>((minor & 0xff) | gnu_dev_major(info.st_rdev) << 8 |
                                       (minor & ~0xffU) << 12);  // proc(5): tty_nr
  ProcessTable& table = ProcessTable::Read();
  return std::any_of(table.begin(), table.end(), [&](const ProcessEntry& entry) {
    return entry.terminal == number && !entry.ended();
  });
}

// -1: the process waits for none, or it is not to be seen.
int AwaitedDescriptor(pid_t pid) {
  const auto call = ReadFile(absl::StrCat("/proc/", pid, "/syscall"));
  const std::vector<std::string> words = absl::StrSplit(call.ok() ? *call : "", ' ');
  long number = 0;
  uint64_t first = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[0], &number) ||
      !absl::SimpleHexAtoi(words[1], &first)) {
    return -1;
  }
  if (number == SYS_read) return static_cast<int>(first);
#ifdef SYS_select
  if (number == SYS_select) return static_cast<int>(first) - 1;
#endif
  return number == SYS_pselect6 ? static_cast<int>(first) - 1 : -1;
}

}  // namespace

OwnInput::OwnInput(int fd) : fd_(fd) {
  // Ours are close-on-exec each: where this command was started without a stdin, the number is one
  // of them by now.
  const int flags = fcntl(fd, F_GETFD);
  facts_.is_open = flags >= 0 && (flags & FD_CLOEXEC) == 0;
  facts_.is_terminal = facts_.is_open && isatty(fd) == 1;
  facts_.in_foreground = facts_.is_terminal && IsInForeground();
  termios settings = {};
  if (facts_.in_foreground && tcgetattr(fd, &settings) == 0) settings_ = settings;
}

bool OwnInput::IsInForeground() const {
  const pid_t group = tcgetpgrp(fd_);
  if (group >= 0) return group == getpgrp();
  // Without job control (no controlling terminal) no process is in the background. An agent that
  // started this command as its worker gave it that terminal on purpose.
  return std::getenv(contract::kAgentToken) != nullptr || !IsAnothers(fd_);
}

bool OwnInput::IsAwaitedBy(pid_t session) const {
  struct stat terminal = {};
  if (fstat(fd_, &terminal) != 0) return false;
  ProcessTable& table = ProcessTable::Read();
  return std::any_of(table.begin(), table.end(), [&](const ProcessEntry& entry) {
    if (entry.session != session) return false;
    const int waits_for = AwaitedDescriptor(entry.pid);
    struct stat file = {};
    return waits_for >= 0 &&
           stat(absl::StrCat("/proc/", entry.pid, "/fd/", waits_for).c_str(), &file) == 0 &&
           S_ISCHR(file.st_mode) && file.st_rdev == terminal.st_rdev;
  });
}

void OwnInput::Restore() const {
  if (!settings_.has_value() || !IsInForeground()) return;
  const ScopedAllSignalsBlocked blocked;  // Should it lose the foreground now: no SIGTTOU.
  // TCSADRAIN would hang, since after Ctrl-S nothing drains.
  tcsetattr(fd_, TCSANOW, &*settings_);
}

}  // namespace convene::agent
