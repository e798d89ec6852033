#include "tools/base/exit_deadline.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "tools/base/check.h"

namespace convene {
namespace {

// The data that the signal's handler uses; set before the timer.
struct LastWords {
  std::string text;
  int exit_code = 0;
  bool armed = false;
};

LastWords& Words() {
  static auto* const words = new LastWords;
  return *words;
}

void LeaveNow(int /*signal*/) {
  // Written only where there is room, since the reader may stand still.
  pollfd room = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&room, 1, 0) == 1 && (room.revents & POLLOUT) != 0) {
    (void)!write(STDERR_FILENO, Words().text.data(), Words().text.size());
  }
  _exit(Words().exit_code);
}

void SetTimer(absl::Duration duration) {
  itimerval timer = {};
  timer.it_value = absl::ToTimeval(duration);
  CONVENE_CHECK(setitimer(ITIMER_REAL, &timer, nullptr) == 0);
}

}  // namespace

ExitDeadline::ExitDeadline(absl::Duration patience, int exit_code, const std::string& text) {
  CONVENE_CHECK(!Words().armed);
  // At most as many bytes as a pipe with any room takes at once.
  Words() = LastWords{text.substr(0, PIPE_BUF - 1) + "\n", exit_code, true};
  struct sigaction action = {};
  action.sa_handler = &LeaveNow;
  CONVENE_CHECK(sigaction(SIGALRM, &action, nullptr) == 0);
  SetTimer(patience);
}

ExitDeadline::~ExitDeadline() {
  SetTimer(absl::ZeroDuration());
  Words().armed = false;
}

}  // namespace convene
