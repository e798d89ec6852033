// How long to wait before the next try.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace convene {

// Exponential back-off with jitter. PURE: the randomness comes in. Not thread-safe.
class Backoff {
 public:
  Backoff(absl::Duration first, absl::Duration longest) : next_(first), longest_(longest) {}

  // `random_fraction` in [0, 1): the wait is between half of and the whole current step; the step
  // then doubles.
  absl::Duration Next(double random_fraction) {
    const absl::Duration wait = next_ * (0.5 + 0.5 * random_fraction);
    next_ = std::min(next_ * 2, longest_);
    return wait;
  }

 private:
  absl::Duration next_;
  const absl::Duration longest_;
};

}  // namespace convene
