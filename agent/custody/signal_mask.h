// No signal handler runs in this thread while it lives.
#pragma once

#include <pthread.h>
#include <signal.h>

#include "tools/base/check.h"

namespace convene::agent {

class ScopedAllSignalsBlocked {
 public:
  ScopedAllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    CONVENE_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before_) == 0);
  }
  ~ScopedAllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  ScopedAllSignalsBlocked(const ScopedAllSignalsBlocked&) = delete;
  ScopedAllSignalsBlocked& operator=(const ScopedAllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace convene::agent
