#include "tools/base/clock.h"

#include <time.h>

#include "absl/time/clock.h"

namespace convene {
namespace {

class RealClock : public Clock {
 public:
  MonotonicTime Now() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return MonotonicTime::FromEpoch(absl::Seconds(now.tv_sec) + absl::Nanoseconds(now.tv_nsec));
  }
  void SleepFor(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

Clock& Clock::Real() {
  static RealClock* const clock = new RealClock;
  return *clock;
}

absl::Time WallNow() { return absl::Now(); }

}  // namespace convene
