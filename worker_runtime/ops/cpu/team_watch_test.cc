#include "worker_runtime/ops/cpu/team_watch.h"

#include <catch2/catch.hpp>

namespace convene::worker::cpu {
namespace {

constexpr double kMicrosecond = 1e3;
constexpr double kMillisecond = 1e6;

// The time for loops, each of which takes one thread `alone` and a team `whole`.
double TimeFor(TeamWatch& watch, int loops, double alone, double whole) {
  double time = 0;
  for (int i = 0; i < loops; ++i) {
    if (watch.is_paused()) {
      time += alone;
      watch.RanAlone(alone);
    } else {
      time += whole;
      watch.Ran(alone, whole);
    }
  }
  return time;
}

TEST_CASE("teams that gain are never paused, nor for waking up now and then") {
  TeamWatch watch;
  for (int step = 0; step < 100; ++step) {
    watch.Ran(10 * kMicrosecond, 200 * kMicrosecond);
    CHECK_FALSE(watch.is_paused());
    CHECK(TimeFor(watch, 50, 10 * kMicrosecond, 6 * kMicrosecond) == 50 * 6 * kMicrosecond);
  }
}

TEST_CASE("teams whose threads wait for a CPU cost a twentieth of the time") {
  for (const double alone : {10 * kMicrosecond, 200 * kMicrosecond, 5 * kMillisecond}) {
    for (const double loss : {10 * kMicrosecond, 1 * kMillisecond, 20 * kMillisecond}) {
      TeamWatch watch;
      const int loops = static_cast<int>(100 * (alone + loss) / alone * 20);
      const double time = TimeFor(watch, loops, alone, alone + loss);
      CAPTURE(alone, loss, loops);
      CHECK(time <= 1.05 * loops * alone + kMillisecond + loss);
    }
  }
}

TEST_CASE("teams come back soon after the CPUs are free again") {
  TeamWatch watch;
  (void)TimeFor(watch, 100, 10 * kMicrosecond, 1 * kMillisecond);
  // The pause for one loss of 1 ms, and no longer one for a long list of losses.
  const double time = TimeFor(watch, 12'000, 10 * kMicrosecond, 5 * kMicrosecond);
  CHECK(time <= 20 * kMillisecond + 10'000 * 5 * kMicrosecond);
}

TEST_CASE("what was gained long ago pays for little") {
  TeamWatch watch;
  (void)TimeFor(watch, 100'000, 10 * kMicrosecond, 5 * kMicrosecond);
  watch.Ran(10 * kMicrosecond, 1 * kMillisecond);
  CHECK(watch.is_paused());
}

}  // namespace
}  // namespace convene::worker::cpu
