// No epoch begins beside workers of an older one, as stories (story.h tells how to read them):
// nodes that lost their connection, that leave, that save for longer than the join timeout.
#include <catch2/catch.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

// Two nodes in epoch 1, of which one is enough. Node a may take 40 s to stop.
const char kTwoRun[] = R"(
    > a hello incarnation=7 stop_limit=40
    a: welcome
    > b hello incarnation=8
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
)";

TEST_CASE("a node that comes back from a connection reset is waited for while its workers end") {
  const std::string reset = absl::StrCat(kTwoRun, R"(
    > b drops
    a: stop abort: b is lost: its connection closed
    > b' hello incarnation=8 last_epoch=1 with_workers
    b': welcome
    > a ready
    > show b
    b: joining: its workers of an earlier epoch are being stopped
  )");
  SECTION("they end, and one restart is enough for both") {
    Check(Story(Nodes(1, 2)), absl::StrCat(reset, R"(
    > wait 1s
    > b' ready epoch=1
    a: epoch 2 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b': epoch 2 node 1 of 2, ranks from 1 of 2, store a, failures 0
    )"));
  }
  SECTION("not much longer than its lease: its agent has killed them by then") {
    Check(Story(Nodes(1, 2)), absl::StrCat(reset, R"(
    > rest 6s
    > wait 1s
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    )"));
  }
  SECTION("nor when it is gone again") {
    Check(Story(Nodes(1, 2)), absl::StrCat(reset, R"(
    > b' drops
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    )"));
  }
}

TEST_CASE("a node whose workers died with its agent is not waited for") {
  Check(Story(Nodes(1, 2)), absl::StrCat(kTwoRun, R"(
    > b drops
    a: stop abort: b is lost: its connection closed
    > b' hello incarnation=9
    b': welcome
    > a ready
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )"));
}

TEST_CASE("a daemon that lost its memory waits until the workers that it forgot have saved") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello last_epoch=5 with_workers stop_limit=40
    a: welcome
    > b hello last_epoch=5
    b: welcome
    > c hello last_epoch=5
    c: welcome
    > b ready epoch=5
    > c ready epoch=5
    > rest 30s
    > a ready epoch=5
    a: epoch 6 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 6 node 1 of 2, ranks from 1 of 2, store a, failures 0
    c: close left: no seat became free within the join timeout of 4s: the job runs on 2 nodes with \
       0 spares
    c: end OK
  )");
}

TEST_CASE("workers that a forgetful daemon's only nodes still save are waited for, too") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello last_epoch=5 with_workers stop_limit=40
    a: welcome
    > b hello last_epoch=5 with_workers stop_limit=40
    b: welcome
    > rest 30s
    > a ready epoch=5
    > b ready epoch=5
    a: epoch 6 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 6 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE("a node that leaves has left when its last worker is gone") {
  const std::string leaving = absl::StrCat(kTwoRun, R"(
    > b leaves with_workers
    a: stop abort: b left: SIGTERM
    b: stop abort: b left: SIGTERM
    > a fails rank=0 code=1
    > show b
    b: running: leaving: its last workers are being stopped
    > a ready
    > rest 20s
  )");
  SECTION("then the others go on, and nobody is blamed") {
    Check(Story(Nodes(1, 2)), absl::StrCat(leaving, R"(
    > b leaves
    b: close left: SIGTERM
    b: end OK
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    )"));
  }
  SECTION("or when its agent is") {
    Check(Story(Nodes(1, 2)), absl::StrCat(leaving, R"(
    > b drops
    a: epoch 2 node 0 of 1, ranks from 0 of 1, store a, failures 0
    )"));
  }
}

TEST_CASE("a node that saves for longer than the join timeout is neither given up nor blamed") {
  Check(Story(Nodes(2, 3)), R"(
    > a hello stop_limit=40
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
    > b ready
    > rest 39s
    > a ready
    a: epoch 2 node 0 of 3, ranks from 0 of 3, store a, failures 0
    b: epoch 2 node 1 of 3, ranks from 1 of 3, store a, failures 0
    c: epoch 2 node 2 of 3, ranks from 2 of 3, store a, failures 0
  )");
}

TEST_CASE("the wait for more nodes begins when the last member has stopped, not before") {
  Check(Story(Nodes(2, 2)), absl::StrCat(kTwoRun, R"(
    > b drops
    a: stop abort: b is lost: its connection closed
    > rest 20s
    > a ready
    > rest 3s
    > b' hello
    b': welcome
    > b' ready
    a: epoch 2 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b': epoch 2 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )"));
}

}  // namespace
}  // namespace convene::rendezvous
