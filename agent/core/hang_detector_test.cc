#include "agent/core/hang_detector.h"

#include <string>

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

using Catch::Contains;

constexpr absl::Duration kLook = absl::Seconds(1);

// Time that runs in looks of a second; workers tell what they do.
struct Story {
  explicit Story(const HangLimits& limits = {}, int world_size = 1) : detector(limits, kLook) {
    detector.BeginEpoch(4, world_size, now);
  }
  void Tell(int local_rank, int64_t step, const std::string& phase = "step") {
    WorkerReading& reading = readings[local_rank];
    reading.step = step;
    reading.phase = phase;
    reading.changed_at = now;
    reading.tells_every_phase = tells_every_phase;
  }
  // Looks each second; the verdict's reason as soon as there is one, else "".
  std::string Pass(absl::Duration duration) {
    const MonotonicTime end = now + duration;
    while (now < end) {
      now = now + kLook;
      const auto verdict = detector.Look(readings, now);
      if (verdict.has_value()) {
        blamed = verdict->local_ranks.front();
        return verdict->why;
      }
    }
    return "";
  }
  // `count` more steps of `each` by all workers told of.
  std::string Steps(int count, absl::Duration each) {
    for (int i = 0; i < count; ++i) {
      const std::string why = Pass(each);
      if (!why.empty()) return why;
      for (auto& [local_rank, reading] : readings) Tell(local_rank, reading.step + 1);
    }
    return Pass(kLook);
  }

  bool tells_every_phase = true;
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(5));
  std::map<int, WorkerReading> readings;
  HangDetector detector;
  int blamed = -1;
};

HangLimits Given(absl::Duration startup, absl::Duration step, absl::Duration checkpoint) {
  return HangLimits{.startup = startup, .step = step, .checkpoint = checkpoint, .automatic = false};
}

TEST_CASE("a worker that ended with 0 is named where others may wait for it, and told of once") {
  Story story(Given({}, absl::Seconds(30), {}), 3);
  for (int local_rank = 0; local_rank < 3; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  story.readings.erase(1);
  story.detector.EndedWell(1, 31, story.now);
  CHECK(story.Pass(absl::Seconds(9)).empty());
  CHECK(story.detector.TakeNews().empty());
  CHECK(story.Pass(absl::Seconds(2)).empty());
  CHECK(story.detector.TakeNews() ==
        "ended with 0: rank 5 (after step 31, 10 s ago); other workers of this node still run: "
        "where they wait for it in a collective, they wait for ever");
  const std::string why = story.Pass(absl::Seconds(40));
  CHECK(story.detector.TakeNews().empty());
  CHECK_THAT(why, Contains("; all 2 workers here that tell their progress stand there; ended with "
                           "0: rank 5 (after step 31, ") &&
                      Catch::EndsWith(" ago): the others may wait for it") && !Contains("another"));
  // Nothing of it is left in the next epoch.
  story.detector.BeginEpoch(4, 3, story.now);
  for (int local_rank = 0; local_rank < 3; ++local_rank) story.Tell(local_rank, 31);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(60)), !Contains("ended"));
}

TEST_CASE("a stopped process is to blame before workers that stand where it stands") {
  Story story(Given({}, absl::Seconds(30), {}), 4);
  for (int local_rank = 0; local_rank < 4; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  story.readings[3].is_stopped = true;
  CHECK(story.Pass(absl::Seconds(29)).empty());
  CHECK(story.Pass(absl::Seconds(2)) ==
        "hang: no step for 31 s (limit 30 s), phase step, step 31; its process has been stopped by "
        "a signal (state T) for 29 s; the others here: ranks 4,5,6 at step 31 (step)");
  CHECK(story.blamed == 3);
}

TEST_CASE("a stopped process is to blame before a worker that is behind it") {
  Story story(Given({}, absl::Seconds(30), {}), 2);
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  story.Tell(1, 32);
  story.readings[1].is_stopped = true;
  CHECK_THAT(story.Pass(absl::Seconds(40)), Contains("state T"));
  CHECK(story.blamed == 1);
}

TEST_CASE("without a given limit a process may be stopped for a minute, and its page may be old") {
  HangLimits limits;
  limits.automatic = true;
  Story story(limits, 2);
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  CHECK(story.Pass(absl::Minutes(10)).empty());
  story.readings[1].is_stopped = true;
  CHECK(story.Pass(absl::Seconds(50)).empty());
  story.readings[1].is_stopped = false;
  CHECK(story.Pass(absl::Seconds(50)).empty());
  story.readings[1].is_stopped = true;
  CHECK(story.Pass(absl::Seconds(60)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(3)), Contains("(limit 60 s, of a stopped process)"));
  CHECK(story.blamed == 1);
}

TEST_CASE("a process that is stopped in a phase without a limit has the time of a step") {
  HangLimits limits;
  limits.step = absl::Seconds(3);
  Story story(limits, 2);
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 32, "validation");
  CHECK(story.Pass(absl::Minutes(2)).empty());
  story.readings[1].is_stopped = true;
  CHECK(story.Pass(absl::Seconds(4)).empty());
  CHECK_THAT(story.Pass(kLook), Contains("(limit 3 s, of a stopped process)"));
}

TEST_CASE("the node of a stopped process does not wait for another node to report first") {
  Story story(Given({}, absl::Seconds(100), {}), 4);
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  Story neighbour = story;
  story.readings[1].is_stopped = true;
  story.readings[1].tells_awaited = true;
  story.readings[1].awaited_rank = 0;  // as it was when it was stopped
  CHECK(story.Pass(absl::Seconds(99)).empty());
  CHECK_FALSE(story.Pass(absl::Seconds(2)).empty());
  CHECK(neighbour.Pass(absl::Seconds(110)).empty());
}

// Workers 0 to 3 (ranks 4 to 7) of `world_size`, alike at step 31. Each but `free` waits for rank
// `awaited`.
Story Waiting(int world_size, int awaited, int free) {
  Story story(Given({}, absl::Seconds(100), {}), world_size);
  for (int local_rank = 0; local_rank < 4; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  for (auto& [local_rank, reading] : story.readings) {
    reading.tells_awaited = true;
    if (local_rank == free) continue;
    reading.awaited_rank = awaited;
    reading.awaits = "all_reduce #17 of dp waits for rank " + std::to_string(awaited);
  }
  return story;
}

TEST_CASE("of workers that stand alike the one that waits for none is to blame, at once") {
  Story story = Waiting(8, 7, 3);
  CHECK(story.Pass(absl::Seconds(99)).empty());
  CHECK(story.Pass(absl::Seconds(2)) ==
        "hang: no step for 101 s (limit 100 s), phase step, step 31; it waits for no other rank; "
        "all 4 workers here that tell their progress stand there; ranks 4,5,6: all_reduce #17 of "
        "dp waits for rank 7");
  CHECK(story.blamed == 3);
}

TEST_CASE("workers that wait for a rank of another node give that node time to report") {
  Story story = Waiting(8, 1, -1);
  CHECK(story.Pass(absl::Seconds(110)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(5)),
             Contains("stand there; it may wait for another rank; ") &&
                 Catch::EndsWith("; ranks 4,5,6,7: all_reduce #17 of dp waits for rank 1"));
}

TEST_CASE("a wait that leads to another node is told of workers that do not stand alike too") {
  Story story = Waiting(8, 1, -1);
  story.Tell(2, 32);
  story.readings[3].awaited_rank = 4;  // which waits for rank 1
  Story circle = story;
  CHECK_THAT(story.Pass(absl::Seconds(115)),
             Contains("step 31; it may wait for another rank; the others here: "));
  for (auto& [local_rank, reading] : circle.readings) reading.awaited_rank = 4 + (local_rank ^ 1);
  const std::string why = circle.Pass(absl::Seconds(115));
  CHECK_THAT(why, Contains("the others here: ") && !Contains("another rank"));
}

TEST_CASE("the words by which the daemon judges come before all that may be cut off") {
  constexpr size_t kWireBytes = 500;
  Story story(Given({}, absl::Seconds(100), {}), 128);
  for (int local_rank = 0; local_rank < 64; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  for (auto& [local_rank, reading] : story.readings) {
    reading.tells_awaited = true;
    reading.awaited_rank = 100;
    reading.awaits = "all_reduce #" + std::to_string(local_rank % 8) +
                     " of expert_dp_replicate waits for rank 100";
  }
  Story apart = story;
  const std::string why = story.Pass(absl::Seconds(115));
  CHECK(why.find("it may wait for another rank") < 250);
  CHECK(why.size() < kWireBytes);
  CHECK_THAT(why, Contains("#2 of") && !Contains("#3 of"));
  for (int local_rank = 8; local_rank < 64; ++local_rank) {
    apart.Tell(local_rank, 32 + local_rank % 8, "a_phase_with_a_long_name");
  }
  CHECK(apart.Pass(absl::Seconds(115)).find("it may wait for another rank") < 250);
}

TEST_CASE("what the others wait for stands beside the state of a stopped process") {
  Story story = Waiting(4, 6, 2);
  story.readings[2].is_stopped = true;
  CHECK_THAT(story.Pass(absl::Seconds(103)),
             Contains("(state T) for 99 s; the others here: ranks 4,5,7 at step 31 (step); ranks "
                      "4,5,7: all_reduce #17 of dp waits for rank 6"));
  CHECK(story.blamed == 2);
}

TEST_CASE("where hangs are not looked for a process may be stopped for ever") {
  Story story(Given({}, {}, {}), 2);
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 30);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  story.readings[1].is_stopped = true;
  CHECK(story.Pass(absl::Hours(10)).empty());
}

TEST_CASE("nobody is said to wait for a worker that ended with 0 while the others make steps") {
  Story story(Given({}, absl::Seconds(30), {}), 2);
  for (int local_rank = 0; local_rank < 2; ++local_rank) story.Tell(local_rank, 30);
  story.readings.erase(1);
  story.detector.EndedWell(1, 31, story.now);
  CHECK(story.Steps(20, absl::Seconds(2)).empty());
  CHECK(story.detector.TakeNews().empty());
  CHECK(story.Pass(absl::Seconds(11)).empty());
  CHECK_THAT(story.detector.TakeNews(), Catch::StartsWith("ended with 0: rank 5"));
}

TEST_CASE("a worker that never tells is never judged") {
  Story story(Given(absl::Seconds(1), absl::Seconds(1), absl::Seconds(1)));
  CHECK(story.Pass(absl::Hours(10)).empty());
  CHECK_FALSE(story.detector.Progress(story.now).has_value());
}

TEST_CASE("without limits nobody is judged") {
  Story story(Given({}, {}, {}));
  story.Tell(0, 0);
  CHECK(story.Steps(100, absl::Seconds(2)).empty());
  CHECK(story.Pass(absl::Hours(10)).empty());
}

TEST_CASE("a given limit of a step counts from the last finished one") {
  Story story(Given({}, absl::Seconds(300), {}));
  story.Tell(0, 1700);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  CHECK(story.Pass(absl::Seconds(298)).empty());
  const std::string why = story.Pass(absl::Seconds(10));
  CHECK(why == "hang: no step for 301 s (limit 300 s), phase step, step 1701");
  CHECK(story.blamed == 0);
}

TEST_CASE("a verdict stays until something changes") {
  Story story(Given({}, absl::Seconds(10), {}));
  story.Tell(0, 1);
  CHECK(story.Steps(1, absl::Seconds(2)).empty());
  CHECK_FALSE(story.Pass(absl::Seconds(20)).empty());
  CHECK_FALSE(story.Pass(kLook).empty());
  story.Tell(0, 3);
  CHECK(story.Pass(kLook).empty());
}

TEST_CASE("the limit of the start counts from the start, whatever phases are told") {
  Story story(Given(absl::Seconds(60), absl::Seconds(5), {}));
  CHECK(story.Pass(absl::Seconds(20)).empty());
  story.Tell(0, 0, "startup");
  CHECK(story.Pass(absl::Seconds(30)).empty());
  story.Tell(0, 0, "compile");
  CHECK(story.Pass(absl::Seconds(10)).empty());
  CHECK_THAT(story.Pass(kLook), Contains("no first step for 61 s (limit 60 s), phase compile"));
}

TEST_CASE("a step that is read from a checkpoint does not end the start") {
  Story story(Given(absl::Seconds(60), absl::Seconds(5), {}));
  story.Tell(0, 0, "startup");
  CHECK(story.Pass(absl::Seconds(10)).empty());
  story.Tell(0, 1700);
  CHECK(story.Pass(absl::Seconds(50)).empty());
  CHECK_THAT(story.Pass(kLook), Contains("no first step"));
}

TEST_CASE("a loop that never says \"step\" ends its start by finishing steps") {
  Story story(Given(absl::Seconds(60), absl::Seconds(5), {}));
  story.Tell(0, 0, "forward");
  for (int step = 1; step < 20; ++step) {
    CHECK(story.Pass(absl::Seconds(5)).empty());
    story.Tell(0, step - 1, "backward");
    CHECK(story.Pass(absl::Seconds(5)).empty());
    story.Tell(0, step, "forward");
  }
}

TEST_CASE("each phase has its own limit") {
  Story story(Given({}, absl::Seconds(10), absl::Seconds(100)));
  story.Tell(0, 1);
  CHECK(story.Steps(2, absl::Seconds(2)).empty());
  story.Tell(0, 3, "checkpoint");
  CHECK(story.Pass(absl::Seconds(100)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(2)),
             Contains("no change for") && Contains("limit 100 s), phase checkpoint, step 3"));
  story.Tell(0, 3, "validation");
  CHECK(story.Pass(absl::Hours(3)).empty());
  story.Tell(0, 3);
  CHECK_FALSE(story.Pass(absl::Seconds(12)).empty());
}

TEST_CASE("before 20 steps were seen there is no automatic limit") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(22, absl::Seconds(31)).empty());
  CHECK(story.detector.TakeNews().empty());
  CHECK(story.Pass(absl::Minutes(59)).empty());
  CHECK_THAT(story.Pass(absl::Minutes(2)),
             Contains("limit 3600 s, automatic: not seen often enough"));
}

TEST_CASE("a first step that never ends, and a first validation, hang after an hour") {
  Story story;
  story.Tell(0, 0, "startup");
  CHECK(story.Pass(absl::Minutes(50)).empty());
  story.Tell(0, 0, "compile");  // It goes on: the hour begins anew.
  CHECK(story.Pass(absl::Minutes(50)).empty());
  SECTION("before the first step") {
    CHECK_THAT(story.Pass(absl::Minutes(11)),
               Contains("no first step") && Contains("phase compile"));
  }
  SECTION("in a validation, the first or the second") {
    story.Tell(0, 0);
    CHECK(story.Steps(30, absl::Seconds(1)).empty());
    const bool is_second = GENERATE(false, true);
    if (is_second) {
      story.Tell(0, story.readings[0].step, "validation");
      CHECK(story.Pass(absl::Minutes(30)).empty());
      story.Tell(0, story.readings[0].step);
      CHECK(story.Steps(2, absl::Seconds(1)).empty());
    }
    story.Tell(0, story.readings[0].step, "validation");
    CHECK(story.Pass(absl::Minutes(is_second ? 299 : 59)).empty());  // 10 x 30 min
    CHECK_THAT(story.Pass(absl::Minutes(2)),
               Contains("not seen often enough yet), phase validation"));
  }
}

TEST_CASE("the automatic limit is known after 20 steps, and is told once") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(22, absl::Seconds(31)).empty());
  CHECK(story.Steps(5, absl::Seconds(31)).empty());
  CHECK_THAT(story.detector.TakeNews(),
             Contains("rank 4") && Contains("10 x the median 31 s") && Contains("limit 310 s"));
  CHECK(story.detector.TakeNews().empty());
  CHECK(story.Pass(absl::Seconds(300)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(20)),
             Contains("(limit 310 s, automatic: 10 x the median 31 s), phase step, step 27"));
}

TEST_CASE("quick steps get 30 s, or 15 min when the worker does not tell every phase") {
  Story story;
  story.tells_every_phase = GENERATE(true, false);
  story.Tell(0, 0);
  CHECK(story.Steps(40, absl::Seconds(1)).empty());
  const absl::Duration floor = story.tells_every_phase ? absl::Seconds(30) : absl::Minutes(15);
  CHECK(story.Pass(floor - absl::Seconds(2)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(10)), Contains("automatic: the shortest limit"));
}

TEST_CASE("one step that was long makes the limit longer") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(30, absl::Seconds(2)).empty());
  CHECK(story.Steps(1, absl::Seconds(25)).empty());
  CHECK(story.Pass(absl::Seconds(70)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(20)), Contains("automatic: 3 x the longest 2"));
}

TEST_CASE("many steps between two looks count as one of their mean") {
  Story story;
  story.Tell(0, 0);
  for (int i = 0; i < 40; ++i) {
    story.Tell(0, story.readings[0].step + 100);
    CHECK(story.Pass(kLook).empty());
  }
  const auto progress = story.detector.Progress(story.now);
  REQUIRE(progress.has_value());
  CHECK(progress->steps_per_second == Approx(100).epsilon(0.05));
  CHECK(story.Pass(absl::Seconds(27)).empty());
  CHECK_FALSE(story.Pass(absl::Seconds(10)).empty());
}

TEST_CASE("the step after a checkpoint or a validation is not learnt from") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(30, absl::Seconds(1)).empty());
  for (int i = 0; i < 3; ++i) {
    story.Tell(0, story.readings[0].step, "validation");
    CHECK(story.Pass(absl::Seconds(500)).empty());
    story.Tell(0, story.readings[0].step);
    CHECK(story.Pass(absl::Seconds(20)).empty());
    CHECK(story.Steps(1, absl::Seconds(1)).empty());
  }
  CHECK_THAT(story.Pass(absl::Seconds(40)), Contains("limit 30 s"));
}

TEST_CASE("a phase that was stayed in three times has a limit of its own") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(30, absl::Seconds(1)).empty());
  for (int i = 0; i < 3; ++i) {
    story.Tell(0, story.readings[0].step, "validation");
    CHECK(story.Pass(i == 0 ? absl::Minutes(50) : absl::Seconds(100)).empty());
    CHECK(story.Steps(2, absl::Seconds(1)).empty());
  }
  story.Tell(0, story.readings[0].step, "validation");
  CHECK(story.Pass(absl::Hours(8)).empty());
  CHECK_THAT(story.Pass(absl::Hours(1)), Contains("automatic: 10 x the longest 300"));
}

TEST_CASE("the first steps of an epoch are neither learnt from nor judged") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(3, absl::Minutes(20)).empty());
  CHECK(story.Steps(30, absl::Seconds(1)).empty());
  story.detector.BeginEpoch(4, 1, story.now);
  story.readings.clear();
  story.Tell(0, 25);
  CHECK(story.Pass(absl::Minutes(30)).empty());
  CHECK(story.Steps(2, absl::Minutes(20)).empty());
}

TEST_CASE("what was learnt holds in the next epoch of one world size, and only there") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(30, absl::Seconds(1)).empty());
  const int world_size = GENERATE(1, 2);
  story.detector.BeginEpoch(4, world_size, story.now);
  story.readings.clear();
  story.Tell(0, 25);
  CHECK(story.Steps(5, absl::Seconds(1)).empty());
  CHECK(story.Pass(absl::Minutes(5)).empty() == (world_size == 2));
}

TEST_CASE("time in which the agent did not look is nobody's fault") {
  Story story(Given({}, absl::Seconds(60), {}));
  story.Tell(0, 0);
  CHECK(story.Steps(3, absl::Seconds(2)).empty());
  story.now = story.now + absl::Hours(8);
  CHECK(story.Pass(absl::Seconds(55)).empty());
  CHECK_FALSE(story.Pass(absl::Seconds(10)).empty());
}

TEST_CASE("a gap between looks is not learnt from") {
  Story story;
  story.Tell(0, 0);
  CHECK(story.Steps(30, absl::Seconds(1)).empty());
  story.now = story.now + absl::Hours(8);
  CHECK(story.Steps(1, absl::Seconds(1)).empty());
  CHECK_THAT(story.Pass(absl::Seconds(60)), Contains("limit 30 s"));
}

TEST_CASE("the one that is behind is to blame, and the others' places are told") {
  Story story(Given({}, absl::Seconds(60), {}), 8);
  for (int rank = 0; rank < 4; ++rank) story.Tell(rank, 10);
  CHECK(story.Steps(3, absl::Seconds(2)).empty());
  for (const int rank : {0, 1, 3}) story.Tell(rank, 14);
  const std::string why = story.Pass(absl::Seconds(100));
  CHECK_THAT(why, Contains("phase step, step 13; the others here: ranks 4,5,7 at step 14 (step)"));
  CHECK(story.blamed == 2);
}

TEST_CASE("while one saves within its limit, those that wait for it do not hang") {
  Story story(Given({}, absl::Seconds(60), absl::Hours(1)), 4);
  for (int rank = 0; rank < 4; ++rank) story.Tell(rank, 10);
  CHECK(story.Steps(3, absl::Seconds(2)).empty());
  story.Tell(0, 13, "checkpoint");
  CHECK(story.Pass(absl::Minutes(50)).empty());
  CHECK_THAT(story.Pass(absl::Minutes(11)), Contains("phase checkpoint"));
  CHECK(story.blamed == 0);
}

TEST_CASE("where all stand alike another node's agent gets time to speak first") {
  Story story(Given({}, absl::Seconds(60), {}), 4);
  story.Tell(0, 10);
  story.Tell(1, 10);
  CHECK(story.Steps(3, absl::Seconds(2)).empty());
  CHECK(story.Pass(absl::Seconds(66)).empty());
  CHECK_THAT(
      story.Pass(absl::Seconds(10)),
      Contains(
          "all 2 workers here that tell their progress stand there; it may wait for another rank"));
}

TEST_CASE("a worker that ended is not waited for") {
  Story story(Given({}, absl::Seconds(60), {}), 2);
  story.Tell(0, 10);
  story.Tell(1, 20);
  CHECK(story.Steps(3, absl::Seconds(2)).empty());
  story.detector.Forget(0);
  story.readings.erase(0);
  CHECK(story.detector.Progress(story.now)->step == 23);
}

TEST_CASE("a worker's own time is believed only between its last change and now") {
  Story story(Given({}, absl::Seconds(60), {}));
  story.Tell(0, 0);
  CHECK(story.Steps(3, absl::Seconds(2)).empty());
  story.Tell(0, 4);
  story.readings[0].changed_at = GENERATE(MonotonicTime(), MonotonicTime::InfiniteFuture());
  CHECK(story.Pass(absl::Seconds(55)).empty());
  CHECK_FALSE(story.Pass(absl::Seconds(10)).empty());
}

TEST_CASE("progress is the slowest worker's, and its rate sinks while it stands still") {
  Story story;
  story.Tell(0, 100);
  story.Tell(1, 90);
  CHECK(story.Steps(20, absl::Seconds(2)).empty());
  const auto progress = story.detector.Progress(story.now);
  REQUIRE(progress.has_value());
  CHECK(progress->step == 110);
  CHECK(progress->phase == "step");
  CHECK(progress->steps_per_second == Approx(0.5).epsilon(0.1));
  story.now = story.now + absl::Seconds(1000);
  CHECK(story.detector.Progress(story.now)->steps_per_second < 0.03);
}

TEST_CASE("a worker that invents phases costs no memory without end, and its steps have a limit") {
  Story story;
  for (int i = 0; i < 1000; ++i) {
    story.Tell(0, i % 7, std::to_string(i));
    CHECK(story.Pass(kLook).empty());
  }
  story.Tell(0, 7);
  CHECK(story.Steps(30, absl::Seconds(2)).empty());
  CHECK_FALSE(story.Pass(absl::Minutes(2)).empty());
}

}  // namespace
}  // namespace convene::agent
