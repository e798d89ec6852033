#include "agent/hang/timer_table.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

const MonotonicTime kNow = MonotonicTime::FromEpoch(absl::Hours(5));
const absl::Time kWallNow = absl::FromUnixSeconds(1'800'000'000);

TimerRequest In(double seconds, int64_t pid = 7, const std::string& scope = "train.py#12",
                int signal = 9) {
  return {pid, scope, kWallNow + absl::Seconds(seconds), signal};
}

TEST_CASE("a request is read as PyTorch writes it") {
  const auto acquired = ParseTimerRequest(
      R"({"version": 1, "pid": 4711, "scope_id": "train.py#12", "expiration_time": 1800000001.5,)"
      R"( "signal": 9})");
  REQUIRE(acquired.has_value());
  CHECK(acquired->pid == 4711);
  CHECK(acquired->scope == "train.py#12");
  CHECK(acquired->expires == kWallNow + absl::Milliseconds(1500));
  CHECK(acquired->signal == 9);
  const auto released = ParseTimerRequest(
      R"({"version": 1, "pid": 4711, "scope_id": "", "expiration_time": -1, "signal": 0})");
  REQUIRE(released.has_value());
  CHECK(!released->expires.has_value());
  // No signal, and one that is none: the process is left alone.
  CHECK(ParseTimerRequest(R"({"pid": 1, "scope_id": "", "expiration_time": 5})")->signal == 0);
  CHECK(ParseTimerRequest(R"({"pid": 1, "scope_id": "", "expiration_time": 5, "signal": -9})")
            ->signal == 0);
}

TEST_CASE("what is no request is none") {
  for (const char* line : {"", "{", "[1]", "null", R"({"scope_id": "", "expiration_time": 5})",
                           R"({"pid": 0, "scope_id": "", "expiration_time": 5})",
                           R"({"pid": -1, "scope_id": "", "expiration_time": 5})",
                           R"({"pid": 1e300, "scope_id": "", "expiration_time": 5})",
                           R"({"pid": "7", "scope_id": "", "expiration_time": 5})",
                           R"({"pid": 7, "scope_id": 3, "expiration_time": 5})",
                           R"({"pid": 7, "scope_id": "", "expiration_time": "soon"})"}) {
    CAPTURE(line);
    CHECK(!ParseTimerRequest(line).has_value());
  }
}

TEST_CASE("a timer counts from the moment it came, by the monotonic clock") {
  TimerTable table;
  CHECK(table.next_due() == MonotonicTime::InfiniteFuture());
  REQUIRE(table.Apply(In(3), kWallNow, kNow));
  CHECK(table.next_due() == kNow + absl::Seconds(3));
  CHECK(table.TakeExpired(kNow + absl::Milliseconds(2999)).empty());
  const auto expired = table.TakeExpired(kNow + absl::Seconds(4));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].pid == 7);
  CHECK(expired[0].scope == "train.py#12");
  CHECK(expired[0].signal == 9);
  CHECK(expired[0].late == absl::Seconds(1));
  CHECK(table.TakeExpired(kNow + absl::Hours(1)).empty());
}

TEST_CASE("a timer is set again and released by its scope") {
  TimerTable table;
  REQUIRE(table.Apply(In(3), kWallNow, kNow));
  REQUIRE(table.Apply(In(5), kWallNow, kNow));
  REQUIRE(table.Apply(In(9, 7, "other"), kWallNow, kNow));
  CHECK(table.next_due() == kNow + absl::Seconds(5));
  REQUIRE(table.Apply({7, "train.py#12", std::nullopt, 0}, kWallNow, kNow));
  CHECK(table.next_due() == kNow + absl::Seconds(9));
}

TEST_CASE("a process is told of once, with the first of its timers that has a signal") {
  TimerTable table;
  REQUIRE(table.Apply(In(1, 7, "quiet", 0), kWallNow, kNow));
  REQUIRE(table.Apply(In(3, 7, "later", 15), kWallNow, kNow));
  REQUIRE(table.Apply(In(2, 7, "first", 9), kWallNow, kNow));
  REQUIRE(table.Apply(In(9, 7, "not yet", 9), kWallNow, kNow));
  REQUIRE(table.Apply(In(1, 8, "quiet", 0), kWallNow, kNow));
  REQUIRE(table.Apply(In(1, 9), kWallNow, kNow));
  table.Forget(9);
  const auto expired = table.TakeExpired(kNow + absl::Seconds(4));
  REQUIRE(expired.size() == 2);
  CHECK(expired[0].scope == "first");
  CHECK(expired[0].signal == 9);
  CHECK(expired[1].pid == 8);
  CHECK(expired[1].signal == 0);
  CHECK(table.next_due() == MonotonicTime::InfiniteFuture());
}

TEST_CASE("the table is bounded, and those in it go on") {
  TimerTable table;
  for (size_t i = 0; i < TimerTable::kMostTimers; ++i) {
    REQUIRE(table.Apply(In(5, 7, std::to_string(i)), kWallNow, kNow));
  }
  CHECK(!table.Apply(In(1, 8), kWallNow, kNow));
  CHECK(table.Apply(In(2, 7, "17"), kWallNow, kNow));
  CHECK(table.next_due() == kNow + absl::Seconds(2));
}

}  // namespace
}  // namespace convene::agent
