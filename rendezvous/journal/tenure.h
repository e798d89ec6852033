// Until when a daemon may speak, where several daemons share one memory.
//
// The daemon that leads holds a lease of that memory. Another one may lead once the lease is over,
// so the first one must be silent by then: it looks at its own clock before each word. It counts
// from before the request by which the lease was last renewed, so its time ends first.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// A tenure that was found to be over stays over: words were lost. Thread-safe.
class Tenure {
 public:
  // `term` is above that of every earlier leader.
  Tenure(int64_t term, MonotonicTime until) : term_(term), until_(until) {}

  int64_t term() const { return term_; }

  // Sets a later end. False: the tenure is over.
  bool Extend(MonotonicTime now, MonotonicTime until) {
    MutexLock lock(&mutex_);
    if (!CoversLocked(now)) return false;
    if (until > until_) until_ = until;
    return true;
  }

  bool Covers(MonotonicTime now) {
    MutexLock lock(&mutex_);
    return CoversLocked(now);
  }

  MonotonicTime until() {
    MutexLock lock(&mutex_);
    return until_;
  }

  // Another daemon leads, or may.
  void End() {
    MutexLock lock(&mutex_);
    is_over_ = true;
  }

 private:
  bool CoversLocked(MonotonicTime now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    is_over_ = is_over_ || now >= until_;
    return !is_over_;
  }

  const int64_t term_;
  Mutex mutex_;
  MonotonicTime until_ ABSL_GUARDED_BY(mutex_);
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace convene::rendezvous
