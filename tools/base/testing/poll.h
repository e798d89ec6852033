// For another process's acts that it cannot announce: a file that appears, a process that ends.
#pragma once

#include <functional>

#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::testing {

// Asks every 2 ms until `condition` holds (true), or `patience` has passed (false). Within one
// process wait on a CondVar instead.
inline bool PollUntil(const std::function<bool()>& condition, absl::Duration patience) {
  const MonotonicTime deadline = Clock::Real().Now() + patience;
  while (!condition()) {
    if (Clock::Real().Now() >= deadline) return false;
    Clock::Real().SleepFor(absl::Milliseconds(2));
  }
  return true;
}

}  // namespace convene::testing
