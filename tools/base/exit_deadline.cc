#include "tools/base/exit_deadline.h"

#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include "tools/base/check.h"

namespace convene {
namespace {

// What the signal's handler may use; set before the timer is.
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
  (void)!write(STDERR_FILENO, Words().text.data(), Words().text.size());
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
  Words() = LastWords{text + "\n", exit_code, true};
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
