#include "worker_runtime/schedule/generators.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/schedule/simulate.h"
#include "worker_runtime/schedule/testing/cost.h"

namespace convene::worker {
namespace {

// The times of one chunk. Equal F, I and W are the zero-bubble papers' case.
ComputeTimes Times(double forward, double input, double weight) {
  return {.forward = forward,
          .backward = input + weight,
          .backward_input = input,
          .backward_weight = weight};
}

Schedule Make(absl::string_view name, int ranks, int virtual_stages, int microbatches) {
  const absl::StatusOr<Schedule> schedule = MakeSchedule(name, ranks, virtual_stages, microbatches);
  REQUIRE_OK(schedule);
  return *schedule;
}

struct Played : Timeline, Cost {};

Played Run(const Schedule& schedule, const ComputeTimes& times) {
  const absl::StatusOr<Timeline> timeline = Simulate(schedule, times);
  REQUIRE_OK(timeline);
  return {*timeline, CostOf(schedule, *timeline, times)};
}

// The makespan beyond the work of a rank. Every rank has the same work.
double Lost(const Schedule& schedule, const ComputeTimes& times) {
  const Played timeline = Run(schedule, times);
  for (const double busy : timeline.busy) REQUIRE(busy == Approx(timeline.busy[0]));
  REQUIRE(timeline.bubble_fraction ==
          Approx(1 - timeline.busy[0] / timeline.makespan).margin(1e-12));
  return timeline.makespan - timeline.busy[0];
}

std::string Text(const std::vector<Compute>& list) {
  return absl::StrJoin(
      list, " ", [](std::string* out, const Compute& compute) { out->append(ToString(compute)); });
}

template <typename Check>
void ForEveryShape(Check check) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      INFO(ranks << " ranks, " << microbatches << " microbatches");
      check(ranks, microbatches);
    }
  }
}

TEST_CASE("each schedule, written out") {
  CHECK(Text(Make("gpipe", 2, 1, 3).ranks[1]) == "1F0 1F1 1F2 1B0 1B1 1B2");
  CHECK(Text(Make("1f1b", 2, 1, 3).ranks[0]) == "0F0 0F1 0B0 0F2 0B1 0B2");
  CHECK(Text(Make("interleaved", 2, 2, 4).ranks[0]) ==
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3");
  // In rounds of at least two microbatches, here of three and two.
  CHECK(Text(Make("interleaved", 2, 2, 5).ranks[1]) ==
        "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4");
  CHECK(Text(Make("zb-h1", 3, 1, 4).ranks[1]) == "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3");
  CHECK(Text(Make("zb-v", 2, 2, 3).ranks[0]) ==
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2");
  CHECK(Text(Make("dualpipe-v", 2, 2, 4).ranks[1]) ==
        "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3");
}

TEST_CASE("1f1b goes forward as far as there are ranks below, then takes turns") {
  ForEveryShape([](int ranks, int microbatches) {
    const Schedule schedule = Make("1f1b", ranks, 0, microbatches);
    for (int rank = 0; rank < ranks; ++rank) {
      const int ahead = std::min(ranks - rank - 1, microbatches);
      std::vector<Compute> expected;
      for (int i = 0; i < microbatches + ahead; ++i) {
        if (i < microbatches) expected.push_back({ComputeKind::kForward, rank, i});
        if (i >= ahead) expected.push_back({ComputeKind::kBackward, rank, i - ahead});
      }
      REQUIRE(Text(schedule.ranks[rank]) == Text(expected));
      REQUIRE(Run(schedule, {}).saved_peak[rank] == std::min(ahead + 1, microbatches));
    }
  });
}

TEST_CASE("gpipe and 1f1b lose (p - 1)(F + B)") {
  ForEveryShape([](int ranks, int microbatches) {
    for (const char* name : {"gpipe", "1f1b"}) {
      const Schedule schedule = Make(name, ranks, 0, microbatches);
      REQUIRE(Lost(schedule, Times(3, 4, 1)) == Approx((ranks - 1) * 8.0).margin(1e-9));
      // formulas.md: (p - 1) / (m + p - 1) of the whole.
      REQUIRE(Run(schedule, Times(1, 1, 1)).bubble_fraction ==
              Approx((ranks - 1.0) / (microbatches + ranks - 1)).margin(1e-12));
    }
    const std::vector<int> peak = Run(Make("gpipe", ranks, 0, microbatches), {}).saved_peak;
    REQUIRE(peak == std::vector<int>(ranks, microbatches));
  });
}

TEST_CASE("interleaved loses a v-th of it") {
  ForEveryShape([](int ranks, int microbatches) {
    for (int v = 2; v <= 4; ++v) {
      const Schedule schedule = Make("interleaved", ranks, v, microbatches);
      // Times of a chunk are a v-th of a rank's.
      if (microbatches >= ranks) {
        REQUIRE(Lost(schedule, Times(2, 2, 2)) == Approx((ranks - 1) * 6.0).margin(1e-9));
      }
      const std::vector<int> peak = Run(schedule, {}).saved_peak;
      if (microbatches % ranks != 0) continue;
      for (int rank = 0; rank < ranks; ++rank) {
        REQUIRE(peak[rank] ==
                std::min(v * microbatches, (v - 1) * ranks + 2 * (ranks - 1 - rank) + 1));
      }
    }
  });
}

TEST_CASE("zb-h1 loses (p - 1)(F + I - W) and has the memory of 1f1b's first rank") {
  ForEveryShape([](int ranks, int microbatches) {
    const Schedule schedule = Make("zb-h1", ranks, 0, microbatches);
    if (microbatches >= ranks) {
      for (const ComputeTimes& times : {Times(1, 1, 1), Times(3, 4, 2), Times(5, 4, 4)}) {
        REQUIRE(Lost(schedule, times) ==
                Approx((ranks - 1) * (times.forward + times.backward_input - times.backward_weight))
                    .margin(1e-9));
      }
    }
    REQUIRE(Run(schedule, {}).saved_peak == std::vector<int>(ranks, std::min(ranks, microbatches)));
  });
}

TEST_CASE("no rank of zb-v waits between its first and its last pass when F, I and W are equal") {
  ForEveryShape([](int ranks, int microbatches) {
    const Schedule schedule = Make("zb-v", ranks, 0, microbatches);
    const Played timeline = Run(schedule, Times(1, 1, 1));
    for (int rank = 0; rank < ranks; ++rank) {
      REQUIRE(timeline.saved_peak[rank] <= 2 * ranks);
      if (microbatches < 2 * ranks - 1) continue;
      REQUIRE(timeline.saved_peak[rank] == 2 * ranks);
      REQUIRE(timeline.start[rank].front() == rank);
      REQUIRE(timeline.start[rank].back() + 1 - rank == timeline.busy[rank]);
    }
  });
}

TEST_CASE("dualpipe-v loses at most (p - 1)(F + 2B - 3W), and with equal times half of that") {
  ForEveryShape([](int ranks, int microbatches) {
    const Schedule schedule = Make("dualpipe-v", ranks, 0, microbatches);
    const std::vector<int> peak = Run(schedule, {}).saved_peak;
    REQUIRE(*std::max_element(peak.begin(), peak.end()) <= 2 * ranks + 1);
    if (microbatches < 2 * ranks) return;
    REQUIRE(Lost(schedule, Times(1, 1, 1)) == Approx(ranks - 1).margin(1e-9));
    REQUIRE(Lost(schedule, Times(3, 4, 2)) <= (ranks - 1) * (3 + 2 * 6 - 3 * 2));
    REQUIRE(Lost(schedule, Times(10, 12, 9)) <= (ranks - 1) * (10 + 2 * 21 - 3 * 9));
  });
}

TEST_CASE("every chunk takes its microbatches in ascending order, in each kind of pass") {
  ForEveryShape([](int ranks, int microbatches) {
    for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
      const Played timeline = Run(Make(name, ranks, 0, microbatches), {});
      for (const std::vector<Passes>& chunk : timeline.passes) {
        for (int microbatch = 1; microbatch < microbatches; ++microbatch) {
          REQUIRE(chunk[microbatch].forward > chunk[microbatch - 1].forward);
          REQUIRE(chunk[microbatch].input > chunk[microbatch - 1].input);
          REQUIRE(chunk[microbatch].weight > chunk[microbatch - 1].weight);
        }
      }
    }
  });
}

TEST_CASE("a message takes its time between two ranks, and none inside one") {
  const ComputeTimes times = {.forward = 1, .backward = 2, .message = 0.5};
  CHECK(Run(Make("1f1b", 2, 0, 1), times).makespan == 1 + 0.5 + 1 + 2 + 0.5 + 2);
  CHECK(Run(Make("dualpipe-v", 1, 0, 2), times).makespan == 12);
  CHECK(Run(Make("interleaved", 2, 2, 1), times).makespan == 4 * 1 + 4 * 2 + 6 * 0.5);
}

TEST_CASE("validation goes forward on every placement, and saves nothing") {
  CHECK(Text(ForwardOnly({0, 1, 1, 0}, 3).ranks[0]) == "0F0 0F1 0F2 3F0 3F1 3F2");
  CHECK(Text(ForwardOnly({0, 1, 1, 0}, 3).ranks[1]) == "1F0 1F1 2F0 1F2 2F1 2F2");
  ForEveryShape([](int ranks, int microbatches) {
    for (const char* name : {"1f1b", "interleaved", "zb-v"}) {
      const ChunkPlacement placement = Make(name, ranks, 0, 1).placement;
      const Played timeline = Run(ForwardOnly(placement, microbatches), {});
      REQUIRE(timeline.saved_peak == std::vector<int>(ranks, 1));
      // Nothing is lost but the way through the ranks, there and (with two chunks) back.
      REQUIRE(timeline.makespan - timeline.busy[0] <= 2.0 * ranks - 1);
    }
  });
}

TEST_CASE("a schedule that there is not, is refused with those that there are") {
  CHECK_STATUS(MakeSchedule("1b1f", 2, 1, 4), absl::StatusCode::kInvalidArgument,
               "'1b1f' is no pipeline schedule: the schedules are gpipe, 1f1b, interleaved, zb-h1, "
               "zb-v, dualpipe-v");
  CHECK_STATUS(MakeSchedule("1f1b", 2, 2, 4), absl::StatusCode::kInvalidArgument,
               "1f1b has 1 virtual stages a rank, not 2");
  CHECK_STATUS(MakeSchedule("interleaved", 2, 1, 4), absl::StatusCode::kInvalidArgument,
               "interleaved has 2 or more virtual stages a rank, not 1");
  CHECK_STATUS(MakeSchedule("zb-v", 2, -1, 4), absl::StatusCode::kInvalidArgument, "2 virtual");
}

}  // namespace
}  // namespace convene::worker
