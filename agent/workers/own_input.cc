#include "agent/workers/own_input.h"

#include <fcntl.h>
#include <unistd.h>

#include "agent/custody/signal_mask.h"

namespace convene::agent {
namespace {

// Without job control (no controlling terminal) no process is in the background.
bool IsInForeground(int fd) {
  const pid_t group = tcgetpgrp(fd);
  return group < 0 || group == getpgrp();
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
