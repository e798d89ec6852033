// A clock that a test sets.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene {

// A clock that moves only when told to.
class ManualClock : public Clock {
 public:
  MonotonicTime Now() override {
    MutexLock lock(&mutex_);
    return now_;
  }
  void SleepFor(absl::Duration duration) override { Advance(duration); }
  void Advance(absl::Duration duration) {
    MutexLock lock(&mutex_);
    now_ = now_ + duration;
  }

 private:
  Mutex mutex_;
  MonotonicTime now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene
