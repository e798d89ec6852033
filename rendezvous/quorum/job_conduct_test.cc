// The cost of failures, excluded nodes and fenced-off nodes, as stories (story.h tells how to read
// them).
#include <catch2/catch.hpp>

#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("failures older than the window no longer count, and the close says so") {
  Hello hello = Nodes(1, 1, 1);
  hello.restart_window = absl::Minutes(10);
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 1
    > rest 11m
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    > a ready
    a: epoch 3 node 0 of 1, ranks from 0 of 1, store a, failures 2
    > rest 9m
    > a fails
    a: close failed: rank 0 on a: exit code 1; failure 2 within 10m (3 in all), and --max-restarts \
       allows 1 [rank 0]
    a: end OK
  )");
}

TEST_CASE("restarts that bring no new step end the job even with budget left") {
  Hello hello = Nodes(1, 1, 100);
  hello.max_stuck_restarts = 2;
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a beats step=40
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 1
    > a beats step=40
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    > a ready
    a: epoch 3 node 0 of 1, ranks from 0 of 1, store a, failures 2
    > a beats step=41
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    > a ready
    a: epoch 4 node 0 of 1, ranks from 0 of 1, store a, failures 3
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    > a ready
    a: epoch 5 node 0 of 1, ranks from 0 of 1, store a, failures 4
    > a beats step=30
    > a fails
    a: close failed: rank 0 on a: exit code 1; 2 restarts in a row brought no step beyond 41, and \
       --max-stuck-restarts allows no more [rank 0]
    a: end OK
  )");
}

TEST_CASE("workers that tell no progress are never stuck") {
  Hello hello = Nodes(1, 1, 100);
  hello.max_stuck_restarts = 1;
  Story story(hello);
  story.Tell("> a hello\n> a ready");
  for (int i = 0; i < 50; ++i) story.Tell("> a fails\n> a ready");
  CHECK_FALSE(story.job().closed());
}

TEST_CASE("a node that is blamed three times is left out while the job can do without it") {
  Check(Story(Nodes(1, 2, 9)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a fails rank=0
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > a ready
    > b ready
    a: epoch 2 node 0 of 2, ranks from 0 of 2, store a, failures 1
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store a, failures 1
    > a fails rank=0
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > a ready
    > b ready
    a: epoch 3 node 0 of 2, ranks from 0 of 2, store a, failures 2
    b: epoch 3 node 1 of 2, ranks from 1 of 2, store a, failures 2
    > a fails rank=0
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > a ready
    > b ready
    b: epoch 4 node 0 of 1, ranks from 0 of 1, store b, failures 3
    > show a
    a: cooling down: excluded for 30s more: blamed 3 times lately, the last time: rank 0 on a: exit code 1
    > rest 29s
    > rest 1s
    b: stop checkpoint: a seat is free for a: the workers save and start again
    > b ready
    a: epoch 5 node 0 of 2, ranks from 0 of 2, store a, failures 3
    b: epoch 5 node 1 of 2, ranks from 1 of 2, store a, failures 3
    > a fails rank=0
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > a ready
    > b ready
    b: epoch 6 node 0 of 1, ranks from 0 of 1, store b, failures 4
    > show a
    a: cooling down: excluded for 1m more: blamed 3 times lately, the last time: rank 0 on a: exit code 1
  )");
}

TEST_CASE("a node that is blamed again and again stays when the job cannot do without it") {
  Story story(Nodes(2, 2, 9));
  story.Tell("> a hello\n> a ready\n> b hello\n> b ready");
  for (int i = 0; i < 2; ++i) story.Tell("> a fails\n> a ready\n> b ready");
  CHECK(story.Tell("> a fails\n> a ready\n> b ready") == Flat(R"(
    > a fails
    a: stop abort: rank 0 on a: exit code 1
    b: stop abort: rank 0 on a: exit code 1
    > a ready
    > b ready
    a: epoch 4 node 0 of 2, ranks from 0 of 2, store a, failures 3
    b: epoch 4 node 1 of 2, ranks from 1 of 2, store a, failures 3
  )"));
  CHECK(story.job().View(MonotonicTime()).why == "running on 2 nodes");
}

TEST_CASE("a node that left as unfit is not taken back soon, by whatever process") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello
    a: welcome
    > b hello rank=1
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > b unfit
    b: close left: health check: exit code 1
    b: end OK
    a: stop abort: b (node rank 1) left: health check: exit code 1
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b hello rank=1
    b: welcome
    > b ready
    > show b
    b: cooling down: excluded for 30s more: b (node rank 1) left: health check: exit code 1
    > a drops
    b: epoch 3 node 0 of 1, ranks from 0 of 1, store b, failures 0
  )");
}

TEST_CASE("exclusions double up to half an hour, and one is forgotten for each quiet hour") {
  Conduct conduct;
  const NodeKey key{"a", -1};
  MonotonicTime now;
  const auto exclude = [&] {
    conduct.Exclude(now, key, "unfit");
    const absl::Duration length = conduct.records.at(key).excluded_until - now;
    now = now + length;
    CHECK(conduct.Excluded(now, key) == nullptr);
    return length;
  };
  CHECK(exclude() == absl::Seconds(30));
  CHECK(exclude() == absl::Minutes(1));
  CHECK(exclude() == absl::Minutes(2));
  now = now + absl::Hours(2);
  CHECK(exclude() == absl::Minutes(1));
  for (int i = 0; i < 20; ++i) exclude();
  CHECK(exclude() == absl::Minutes(30));
  now = now + absl::Hours(100);
  CHECK(exclude() == absl::Seconds(30));
}

TEST_CASE("old offences are forgiven, by the hour and by epochs") {
  const NodeKey key{"a", -1};
  const auto blame = [&](int times, absl::Duration pause, int epochs) {
    Conduct conduct;
    MonotonicTime now;
    for (int i = 0; i < times; ++i) {
      now = now + pause;
      conduct.Blame(now, key, Epoch(1 + i * epochs), "crash");
    }
    return conduct.Excluded(now, key) != nullptr;
  };
  CHECK_FALSE(blame(2, absl::Seconds(1), 1));
  CHECK(blame(3, absl::Seconds(1), 1));
  CHECK(blame(3, absl::Minutes(30), 4));
  CHECK_FALSE(blame(30, absl::Minutes(31), 1));
  CHECK_FALSE(blame(30, absl::Seconds(1), 5));
}

TEST_CASE("an agent that was paused beyond its lease changes nothing when it wakes up") {
  Check(Story(Nodes(1, 2, 3)), R"(
    > a hello
    a: welcome
    > b hello incarnation=9
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > wait 3s
    > a beats
    > wait 2s
    b: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s; \
       epoch 1 is over for incarnation 9
    a: stop abort: b is lost: silent for its lease of 5s
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b beats
    > b succeeds
    > b fails rank=1
    > b ready
    > b leaves
    > b drops
    > b' hello incarnation=9 last_epoch=1
    b': welcome
    > b' fails rank=1 epoch=1
    > b' succeeds epoch=1
    > b' beats epoch=1
    b': stop abort: epoch 1 went on without this node (the job is in epoch 2); say Ready to join again
    > b' ready epoch=1
    a: stop checkpoint: a seat is free for b: the workers save and start again
    > a ready
    a: epoch 3 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b': epoch 3 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE(
    "another process on a host whose old one fell silent takes the place when its lease ends") {
  Check(Story(Nodes(1, 1)), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > wait 1s
    > a' hello
    a': welcome
    > a' ready
    > wait 3s
    > a' beats
    > wait 1s
    a: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s; \
       epoch 1 is over for incarnation 1
    a': epoch 2 node 0 of 1, ranks from 0 of 1, store a', failures 0
    > a succeeds
  )");
}

TEST_CASE("the status tells progress, silence and the last eight causes") {
  Story story(Nodes(1, 2, 20));
  story.Tell("> a hello\n> a ready\n> wait 3s");
  for (int i = 0; i < 9; ++i) story.Tell("> a fails code=3\n> a ready\n> rest 1s");
  story.Tell("> a beats step=7\n> wait 2s");
  const JobView view = story.job().View(story.now());
  REQUIRE(view.nodes.size() == 1);
  CHECK(view.nodes[0].heard_ago == absl::Seconds(2));
  CHECK(view.nodes[0].lease == absl::Seconds(5));
  REQUIRE(view.nodes[0].progress.has_value());
  CHECK(view.nodes[0].progress->step == 7);
  REQUIRE(view.last_failures.size() == 8);
  CHECK(view.last_failures[0].epoch == Epoch(9));
  CHECK(view.last_failures[0].what == "rank 0 on a: exit code 3");
  CHECK(view.last_failures[0].ago == absl::Seconds(3));
  CHECK(view.last_failures[7].epoch == Epoch(2));
}

}  // namespace
}  // namespace convene::rendezvous
