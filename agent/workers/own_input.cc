#include "agent/workers/own_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>

#include "agent/custody/process_table.h"
#include "agent/custody/signal_mask.h"

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

// A terminal that controls nobody has no job control: nobody is in the background.
bool IsInForeground(int fd) {
  const pid_t group = tcgetpgrp(fd);
  return group < 0 ? !IsAnothers(fd) : group == getpgrp();
}

}  // namespace

OwnInput::OwnInput(int fd) : fd_(fd) {
  // Ours are close-on-exec each: where this command was started without a stdin, the number is one
  // of them by now.
  const int flags = fcntl(fd, F_GETFD);
  facts_.is_open = flags >= 0 && (flags & FD_CLOEXEC) == 0;
  facts_.is_terminal = facts_.is_open && isatty(fd) == 1;
  facts_.in_foreground = facts_.is_terminal && IsInForeground(fd);
  termios settings = {};
  if (facts_.in_foreground && tcgetattr(fd, &settings) == 0) settings_ = settings;
}

void OwnInput::Restore() const {
  if (!settings_.has_value() || !IsInForeground(fd_)) return;
  const ScopedAllSignalsBlocked blocked;  // Should it lose the foreground now: no SIGTTOU.
  // TCSADRAIN would hang, since after Ctrl-S nothing drains.
  tcsetattr(fd_, TCSANOW, &*settings_);
}

}  // namespace convene::agent
