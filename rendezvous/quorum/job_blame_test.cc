// How epochs end, as stories (story.h tells how to read them): failures, blame, the budget,
// success.
#include <catch2/catch.hpp>

#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a failure stops every node and costs one restart, its echo costs nothing") {
  Check(Story(Nodes(2, 2, 1)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > b fails rank=1 code=3
    a: stop abort: rank 1 on b: exit code 3
    b: stop abort: rank 1 on b: exit code 3
    > a fails rank=0 code=1
    > a ready
    > b ready
    a: epoch 2 node 0 of 2, ranks from 0 of 2, store a, failures 1
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store a, failures 1
    > a fails rank=0 code=9
    a: close failed: rank 0 on a: exit code 9; failure 2, and --max-restarts allows 1; epoch 1 \
       failed otherwise: rank 1 on b: exit code 3 [rank 0]
    a: end OK
    b: close failed: rank 0 on a: exit code 9; failure 2, and --max-restarts allows 1; epoch 1 \
       failed otherwise: rank 1 on b: exit code 3 [rank 0]
    b: end OK
  )");
}

TEST_CASE("a failure that a restart would not mend costs none, even as the second to be told") {
  Check(Story(Nodes(2, 2, 9)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > b fails rank=1 code=75
    a: stop abort: rank 1 on b: exit code 75
    b: stop abort: rank 1 on b: exit code 75
    > a fails rank=0 code=64
    a: close failed: rank 0 on a: exit code 64, which a restart would not mend [rank 0]
    a: end OK
    b: close failed: rank 0 on a: exit code 64, which a restart would not mend [rank 0]
    b: end OK
  )");
}

TEST_CASE("exit code 75 forms anew for free") {
  Check(Story(Nodes(1, 1, 0)), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("epochs in vain, one after the other, begin later and later") {
  Check(Story(Nodes(1, 1, 0)), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > a ready
    > wait 499ms
    > wait 1ms
    a: epoch 3 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > a ready
    > wait 999ms
    > wait 1ms
    a: epoch 4 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("a newcomer is not made to wait for epochs that were in vain without it") {
  Check(Story(Nodes(1, 2, 0)), R"(
    > a hello
    a: welcome
    > a ready
    > wait 3s
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > b hello
    b: welcome
    > b ready
    > a ready
    a: epoch 3 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 3 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE("after sixteen epochs in vain the next one is a failure, which the budget bounds") {
  Story story(Nodes(1, 1, 1));
  story.Tell("> a hello\n> a ready");
  const auto fail_and_begin_again = [&] {
    story.Tell("> a fails code=75\n> a ready");
    while (story.job().state().phase() != Phase::kRunning) story.Tell("> wait 1s\n> a beats");
  };
  for (int i = 0; i < 16; ++i) fail_and_begin_again();
  CHECK(story.job().state().failure_count() == 0);
  fail_and_begin_again();
  CHECK(story.job().state().failure_count() == 1);
  CHECK(story.Tell("> a fails code=75") == Flat(R"(
    > a fails code=75
    a: close failed: rank 0 on a: exit code 75, 18 times in a row within 10s and with the same \
    nodes, which counts as a failure; failure 2, and --max-restarts allows 1 [rank 0]
    a: end OK
  )"));
}

TEST_CASE("an epoch that ran for a while was not in vain, however often it is restarted") {
  Story story(Nodes(1, 1, 0));
  story.Tell("> a hello\n> a ready");
  for (int i = 0; i < 40; ++i) {
    for (int second = 0; second < 10; ++second) story.Tell("> wait 1s\n> a beats");
    story.Tell("> a fails code=75\n> a ready");
  }
  CHECK(story.job().state().failure_count() == 0);
  CHECK(story.job().state().epoch() == Epoch(41));
}

TEST_CASE("the true cause takes the blame from a peer's 75 that came before it") {
  Check(Story(Nodes(2, 2, 0)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a fails rank=0 code=75
    a: stop abort: rank 0 on a: exit code 75
    b: stop abort: rank 0 on a: exit code 75
    > a ready
    > b fails rank=1 code=139
    a: close failed: rank 1 on b: exit code 139; failure 1, and --max-restarts allows 0 [rank 1]
    a: end OK
    b: close failed: rank 1 on b: exit code 139; failure 1, and --max-restarts allows 0 [rank 1]
    b: end OK
  )");
}

TEST_CASE("a lost node shrinks the job at once, and what breaks because of it is not counted") {
  Check(Story(Nodes(2, 3, 0)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > c hello
    c: welcome
    > a ready
    > b ready
    > c ready
    a: epoch 1 node 0 of 3, ranks from 0 of 3, store a, failures 0
    b: epoch 1 node 1 of 3, ranks from 1 of 3, store a, failures 0
    c: epoch 1 node 2 of 3, ranks from 2 of 3, store a, failures 0
    > a drops
    b: stop abort: a is lost: its connection closed
    c: stop abort: a is lost: its connection closed
    > b fails rank=1 code=1
    > b ready
    > c ready
    b: epoch 2 node 0 of 2, ranks from 0 of 2, store b, failures 0
    c: epoch 2 node 1 of 2, ranks from 1 of 2, store b, failures 0
  )");
}

TEST_CASE("a failure during a stop for a checkpoint turns it into an abort") {
  Check(Story(Nodes(2, 3, 5)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    > wait 3s
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > c hello
    c: welcome
    > c ready
    a: stop checkpoint: a seat is free for c: the workers save and start again
    b: stop checkpoint: a seat is free for c: the workers save and start again
    > a ready
    > b fails rank=1 code=2
    b: stop abort: rank 1 on b: exit code 2
    > b ready
    a: epoch 2 node 0 of 3, ranks from 0 of 3, store a, failures 1
    b: epoch 2 node 1 of 3, ranks from 1 of 3, store a, failures 1
    c: epoch 2 node 2 of 3, ranks from 2 of 3, store a, failures 1
  )");
}

TEST_CASE("a node that is lost after it succeeded does not start the job again") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a succeeds
    > a drops
    > b succeeds
    b: close succeeded: the workers of every node succeeded
    b: end OK
  )");
}

TEST_CASE("a latecomer does not start a job anew that begins to end") {
  Check(Story(Nodes(1, 3)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    > wait 3s
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a succeeds
    > c hello
    c: welcome
    > c ready
    > b succeeds
    a: close succeeded: the workers of every node succeeded
    a: end OK
    b: close succeeded: the workers of every node succeeded
    b: end OK
    c: close succeeded: the workers of every node succeeded
    c: end OK
  )");
}

TEST_CASE("what a node finished before it was lost still counts as finished") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a succeeds
    > a drops
    > c hello
    c: welcome
    > c ready
    > b succeeds
    b: close succeeded: the workers of every node succeeded
    b: end OK
    c: close succeeded: the workers of every node succeeded
    c: end OK
  )");
}

TEST_CASE("a node that stopped for a checkpoint and is lost has not finished its part") {
  Check(Story(Nodes(1, 3)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    > wait 3s
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > c hello
    c: welcome
    > c ready
    a: stop checkpoint: a seat is free for c: the workers save and start again
    b: stop checkpoint: a seat is free for c: the workers save and start again
    > a ready
    > a drops
    > b succeeds
    > b ready
    c: epoch 2 node 0 of 2, ranks from 0 of 2, store c, failures 0
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store c, failures 0
  )");
}

TEST_CASE("a lost node takes the blame from a peer's 75, and what breaks because of it is free") {
  Check(Story(Nodes(2, 3, 0)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > c hello
    c: welcome
    > a ready
    > b ready
    > c ready
    a: epoch 1 node 0 of 3, ranks from 0 of 3, store a, failures 0
    b: epoch 1 node 1 of 3, ranks from 1 of 3, store a, failures 0
    c: epoch 1 node 2 of 3, ranks from 2 of 3, store a, failures 0
    > a fails rank=0 code=75
    a: stop abort: rank 0 on a: exit code 75
    b: stop abort: rank 0 on a: exit code 75
    c: stop abort: rank 0 on a: exit code 75
    > c drops
    > b fails rank=1 code=1
    > a ready
    > b ready
    a: epoch 2 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE("a node that does not stop is dropped after the join timeout") {
  Hello hello = Nodes(1, 2);
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    b: stop abort: rank 0 on a: exit code 75
    > a ready
    > wait 3s
    > a beats
    > b beats
    > wait 1s
    b: end UNAVAILABLE: given up by the daemon: b did not stop the workers within 4s; \
       epoch 1 is over for incarnation 2
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("words of an older epoch are ignored") {
  Check(Story(Nodes(1, 1, 3)), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a fails code=75
    a: stop abort: rank 0 on a: exit code 75
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a ready epoch=1
    > a fails epoch=1
    > a succeeds epoch=1
    > a ready
    a: epoch 3 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

}  // namespace
}  // namespace convene::rendezvous
