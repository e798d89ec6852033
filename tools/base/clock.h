// Time as a value. Pure code takes a MonotonicTime; edges hold a Clock, so that tests set the time.
#pragma once

#include <compare>

#include "absl/time/time.h"

namespace convene {

// A point on this machine's monotonic clock. Never comes from, and never compares with, another
// machine's.
class MonotonicTime {
 public:
  constexpr MonotonicTime() = default;
  static MonotonicTime FromEpoch(absl::Duration since_boot) { return MonotonicTime(since_boot); }
  static MonotonicTime InfiniteFuture() { return MonotonicTime(absl::InfiniteDuration()); }

  absl::Duration since_epoch() const { return since_epoch_; }

  friend MonotonicTime operator+(MonotonicTime t, absl::Duration d) {
    return MonotonicTime(t.since_epoch_ + d);
  }
  friend MonotonicTime operator-(MonotonicTime t, absl::Duration d) {
    return MonotonicTime(t.since_epoch_ - d);
  }
  friend absl::Duration operator-(MonotonicTime a, MonotonicTime b) {
    return a.since_epoch_ - b.since_epoch_;
  }
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 in a default <=> for a pointer
  friend std::strong_ordering operator<=>(MonotonicTime, MonotonicTime) = default;

 private:
  explicit MonotonicTime(absl::Duration since_epoch) : since_epoch_(since_epoch) {}
  absl::Duration since_epoch_ = absl::ZeroDuration();
};

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicTime Now() = 0;
  // Blocks the calling thread. For edges only (back-off between tries); tests use ManualClock,
  // which returns at once.
  virtual void SleepFor(absl::Duration duration) = 0;
  // CLOCK_MONOTONIC; lives for the whole process.
  static Clock& Real();
};

// Wall-clock time, for log lines and file names only: never for a decision.
absl::Time WallNow();

}  // namespace convene
