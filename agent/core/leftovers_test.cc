#include "agent/core/leftovers.h"

#include <catch2/catch.hpp>
#include <string>

namespace convene::agent {
namespace {

// The leftovers of workers that ended at second 0.
struct Story {
  explicit Story(absl::Duration grace, bool left_alone = false) : plan({grace, left_alone}) {}

  std::string At(double seconds) {
    now = MonotonicTime::FromEpoch(absl::Hours(1) + absl::Seconds(seconds));
    switch (plan.Next(facts, now)) {
      case LeftoverDeed::kWait:
        return "wait";
      case LeftoverDeed::kAnnounce:
        return "announce";
      case LeftoverDeed::kAsk:
        return "ask";
      case LeftoverDeed::kKill:
        return "kill";
      case LeftoverDeed::kKillMore:
        return "kill more";
      case LeftoverDeed::kGiveUp:
        return "give up";
      case LeftoverDeed::kRelease:
        return "release";
      case LeftoverDeed::kDone:
        return "done";
    }
    return "?";
  }
  // Until the next deadline, in seconds.
  double Left() const { return absl::ToDoubleSeconds(plan.deadline() - now); }

  LeftoverPlan plan;
  LeftoverFacts facts = {/*any_left=*/true, /*output_open=*/true, /*all_well=*/true};
  MonotonicTime now;
};

TEST_CASE("nothing left is done at once, however the workers ended") {
  for (const bool all_well : {false, true}) {
    Story story(absl::Seconds(30));
    story.facts = {false, false, all_well};
    CHECK(story.At(0) == "done");
    CHECK(story.plan.deadline() == MonotonicTime::InfiniteFuture());
  }
}

TEST_CASE("after a failure what is left is asked, a second later killed, then given up on") {
  Story story(absl::Seconds(30));
  story.facts.all_well = false;
  CHECK(story.At(0) == "ask");
  CHECK(story.Left() == 1);
  CHECK(story.At(0.5) == "wait");
  CHECK(story.At(1) == "kill");
  CHECK(story.Left() == 2);
  CHECK(story.At(2) == "kill more");
  CHECK(story.At(3) == "give up");
}

TEST_CASE("after a success it may finish within the grace, and a wait that lasts is announced") {
  Story story(absl::Seconds(30));
  CHECK(story.At(0) == "wait");
  CHECK(story.Left() == 1);
  CHECK(story.At(0.5) == "wait");
  CHECK(story.At(1) == "announce");
  CHECK(story.Left() == 29);
  CHECK(story.At(2) == "wait");
  SECTION("it finishes") {
    story.facts = {false, false, true};
    CHECK(story.At(20) == "done");
  }
  SECTION("it does not") {
    CHECK(story.At(30) == "ask");
    CHECK(story.At(31) == "kill");
  }
  SECTION("the workers are told to stop, because a peer failed") {
    story.facts.all_well = false;
    CHECK(story.At(3) == "ask");
    CHECK(story.Left() == 1);
  }
}

TEST_CASE("a grace below a second is kept, and none means none") {
  Story story(absl::Milliseconds(250));
  CHECK(story.At(0) == "wait");
  CHECK(story.Left() == 0.25);
  CHECK(story.At(0.25) == "ask");
  CHECK(Story(absl::ZeroDuration()).At(0) == "ask");
}

TEST_CASE("as torchrun it is left alone, once nobody holds the output or the grace is over") {
  Story story(absl::Seconds(30), /*left_alone=*/true);
  CHECK(story.At(0) == "wait");
  CHECK(story.At(1) == "announce");
  SECTION("it closes the output") {
    story.facts.output_open = false;
    CHECK(story.At(2) == "release");
  }
  SECTION("it does not") { CHECK(story.At(30) == "release"); }
  SECTION("a failure is no success, under any name") {
    story.facts.all_well = false;
    CHECK(story.At(2) == "ask");
  }
}

}  // namespace
}  // namespace convene::agent
