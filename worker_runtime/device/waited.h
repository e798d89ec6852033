// How long a thread has waited for other ranks: the rest of its time is the rank's own work.
#pragma once

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::worker {

// The calling thread's sum so far, from the thread's start on.
absl::Duration ThreadWaited();

// A wait of the calling thread for another rank, as long as it lives. REQUIRES: the thread has no
// other one.
class WaitScope {
 public:
  // `since`: now, where the caller knows it.
  explicit WaitScope(MonotonicTime since = Clock::Real().Now()) : since_(since) {}
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  const MonotonicTime since_;
};

// The calling thread's own time since it was made.
class OwnTime {
 public:
  OwnTime() : since_(Clock::Real().Now()), waited_(ThreadWaited()) {}
  absl::Duration Get() const { return Clock::Real().Now() - since_ - (ThreadWaited() - waited_); }

 private:
  MonotonicTime since_;
  absl::Duration waited_;
};

}  // namespace convene::worker
