#include "tools/base/signals.h"

#include <sys/signalfd.h>

#include "tools/base/check.h"

namespace convene {

sigset_t SignalSet(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

void BlockSignals(const std::vector<int>& signals) {
  const sigset_t set = SignalSet(signals);
  CONVENE_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
}

UniqueFd TakeSignals(const std::vector<int>& signals) {
  BlockSignals(signals);
  const sigset_t set = SignalSet(signals);
  UniqueFd fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  CONVENE_CHECK(fd.valid());
  return fd;
}

ScopedAllSignalsBlocked::ScopedAllSignalsBlocked() {
  sigset_t all;
  sigfillset(&all);
  CONVENE_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before_) == 0);
}

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace convene
