// The signals a process waits for in place of being interrupted.
#pragma once

#include <signal.h>

#include <vector>

#include "tools/base/unique_fd.h"

namespace convene {

sigset_t SignalSet(const std::vector<int>& signals);

// Blocks the signals for this thread: they stay pending until the process takes them. Call it
// before the first thread starts, since threads inherit it.
void BlockSignals(const std::vector<int>& signals);

// Blocks the signals; the descriptor (signalfd(2), non-blocking) is readable when one has come.
UniqueFd TakeSignals(const std::vector<int>& signals);

// While it lives, no signal handler runs in this thread.
class ScopedAllSignalsBlocked {
 public:
  ScopedAllSignalsBlocked();
  ~ScopedAllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ScopedAllSignalsBlocked(const ScopedAllSignalsBlocked&) = delete;
  ScopedAllSignalsBlocked& operator=(const ScopedAllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Whether this process was started with the signal ignored, as nohup does with SIGHUP.
bool IsIgnored(int signal);

}  // namespace convene
