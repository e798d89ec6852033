// Seats and the time when nodes get them, as stories (story.h tells how to read them): the elastic
// start, spares, late nodes, topology.
#include <catch2/catch.hpp>

#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

// A job that may run on any number of nodes up to `most`; no scheduler says how many will come.
Hello Elastic(int most, int spares = 0, absl::Duration admission = absl::ZeroDuration()) {
  Hello hello = Nodes(1, most);
  hello.last_call = absl::ZeroDuration();
  hello.spares = spares;
  hello.admission = admission;
  return hello;
}

TEST_CASE("with nobody counted on, who starts together gathers and who is alone starts at once") {
  Check(Story(Elastic(4)), R"(
    > a hello
    a: welcome
    > a ready
    > wait 90ms
    > b hello
    b: welcome
    > wait 500ms
    > b ready
    > wait 99ms
    > wait 1ms
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
  Check(Story(Elastic(2)), R"(
    > a hello
    a: welcome
    > a ready
    > wait 100ms
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("who is counted on is waited for, without a last call asked for, for the usual one") {
  Hello hello = Elastic(4);
  hello.nodes_expected = 2;
  hello.join_timeout = absl::Minutes(1);
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > a ready
    > rest 4900ms
    > rest 100ms
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("a spare takes the hole of a lost node at once, and the others keep their ranks") {
  Hello hello = Nodes(3, 3);
  hello.spares = 1;
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > c hello
    c: welcome
    > d hello
    d: welcome
    > d ready
    > c ready
    > b ready
    b: epoch 1 node 0 of 3, ranks from 0 of 3, store b, failures 0
    c: epoch 1 node 1 of 3, ranks from 1 of 3, store b, failures 0
    d: epoch 1 node 2 of 3, ranks from 2 of 3, store b, failures 0
    > a ready
    > show a
    a: spare: replaces a node that is lost
    > rest 1h
    > c drops
    b: stop abort: c is lost: its connection closed
    d: stop abort: c is lost: its connection closed
    > b ready
    > d ready
    b: epoch 2 node 0 of 3, ranks from 0 of 3, store b, failures 0
    a: epoch 2 node 1 of 3, ranks from 1 of 3, store b, failures 0
    d: epoch 2 node 2 of 3, ranks from 2 of 3, store b, failures 0
  )");
}

TEST_CASE("a spare that falls silent is gone, and the job does not notice") {
  Hello hello = Nodes(1, 1);
  hello.spares = 1;
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > s hello
    s: welcome
    > s ready
    > wait 3s
    > a beats
    > wait 2s
    s: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s; \
       epoch 1 is over for incarnation 2
    > a succeeds
    a: close succeeded: the workers of every node succeeded
    a: end OK
  )");
}

TEST_CASE("who waits beyond the spares is sent away after the join timeout, and the job goes on") {
  Hello hello = Nodes(1, 1);
  hello.spares = 1;
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > s hello
    s: welcome
    > s ready
    > x hello
    x: welcome
    > x ready
    > show x
    x: waiting: no seat (members 1 of 1, spares 1); sent away in 4s unless one becomes free
    > rest 3900ms
    > rest 100ms
    x: close left: no seat became free within the join timeout of 4s: the job runs on 1 node with 1 spare
    x: end OK
    > show s
    s: spare: replaces a node that is lost
    > a succeeds
    a: close succeeded: the workers of every node succeeded
    a: end OK
    s: close succeeded: the workers of every node succeeded
    s: end OK
  )");
}

TEST_CASE("when a spare is used up, who waited longest for a seat is the next spare") {
  Hello hello = Nodes(1, 1);
  hello.spares = 1;
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > s hello
    s: welcome
    > s ready
    > x hello
    x: welcome
    > x ready
    > a drops
    s: epoch 2 node 0 of 1, ranks from 0 of 1, store s, failures 0
    > show x
    x: spare: replaces a node that is lost
    > rest 10s
  )");
}

TEST_CASE("late nodes are let in together, when nobody has arrived for a while") {
  Check(Story(Elastic(4, 0, absl::Seconds(2))), R"(
    > a hello
    a: welcome
    > a ready
    > wait 100ms
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b hello
    b: welcome
    > b ready
    > show b
    b: ready: joins at the next epoch, in 2s
    > rest 1s
    > c hello
    c: welcome
    > c ready
    > rest 1900ms
    > rest 100ms
    a: stop checkpoint: a seat is free for b, c: the workers save and start again
    > a ready
    a: epoch 2 node 0 of 3, ranks from 0 of 3, store a, failures 0
    b: epoch 2 node 1 of 3, ranks from 1 of 3, store a, failures 0
    c: epoch 2 node 2 of 3, ranks from 2 of 3, store a, failures 0
  )");
}

TEST_CASE("a daemon that is told to end stops nobody for a late node") {
  Check(Story(Elastic(4, 0, absl::Seconds(2))), R"(
    > a hello incarnation=7 hosts
    a: welcome
    > a ready
    > wait 100ms
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b hello incarnation=8
    b: welcome
    > b ready
    > daemon ends soon host=7
    > rest 10s
  )");
}

TEST_CASE("a stream of arrivals puts the admission off no longer than four times") {
  Story story(Elastic(16, 0, absl::Seconds(2)));
  story.Tell("> a hello\n> a ready\n> wait 100ms");
  for (const char* name : {"b", "c", "d", "e"}) {
    story.Tell(absl::StrCat("> ", name, " hello\n> ", name, " ready\n> rest 1900ms"));
  }
  CHECK(story.Tell("> f hello\n> f ready\n> rest 400ms") == Flat(R"(
    > f hello
    f: welcome
    > f ready
    > rest 400ms
    a: stop checkpoint: a seat is free for b, c, d and 2 more: the workers save and start again
  )"));
}

TEST_CASE("a late node that is gone again before its admission does not stop the job") {
  Check(Story(Elastic(4, 0, absl::Seconds(2))), R"(
    > a hello
    a: welcome
    > a ready
    > wait 100ms
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b hello
    b: welcome
    > b ready
    > rest 1s
    > b drops
    > rest 3s
    > c hello
    c: welcome
    > c ready
    > rest 1900ms
    > rest 100ms
    a: stop checkpoint: a seat is free for c: the workers save and start again
  )");
}

TEST_CASE("a loss lets late nodes in at once: the job stops anyway") {
  Check(Story(Elastic(4, 0, absl::Minutes(5))), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    > wait 100ms
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > c hello
    c: welcome
    > c ready
    > a drops
    b: stop abort: a is lost: its connection closed
    > b ready
    c: epoch 2 node 0 of 2, ranks from 0 of 2, store c, failures 0
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store c, failures 0
  )");
}

TEST_CASE("a node that comes and goes stops a running job three times and no more") {
  Story story(Elastic(2));
  story.Tell("> a hello\n> a ready\n> wait 100ms");
  for (int i = 0; i < 3; ++i) {
    story.Tell("> b hello\n> b ready\n> a ready\n> b drops\n> a ready");
  }
  CHECK(story.job().state().epoch() == Epoch(7));
  CHECK(story.Tell("> b hello\n> b ready\n> show b\n> rest 20s\n> b drops\n> b hello\n> b ready\n"
                   "> rest 59s\n> rest 1s") == Flat(R"(
    > b hello
    b: welcome
    > b ready
    > show b
    b: cooling down: excluded for 30s more: blamed 3 times lately, the last time: b is lost: its \
    connection closed
    > rest 20s
    > b drops
    > b hello
    b: welcome
    > b ready
    > rest 59s
    > rest 1s
    a: stop checkpoint: a seat is free for b: the workers save and start again
  )"));
}

TEST_CASE("a daemon that slept gives every node another lease") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > sleep 20s
    > wait 4900ms
    > a beats
    > wait 100ms
    b: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s; \
       epoch 1 is over for incarnation 2
    a: stop abort: b is lost: silent for its lease of 5s
  )");
}

TEST_CASE("where no node is heard nobody is judged, and the epoch goes on with the first word") {
  Story story(Nodes(2, 2));
  story.Tell(R"(
    > a hello
    > b hello
    > a ready
    > b ready
    > rest 10s
  )");
  SECTION("for a while: the whole job was suspended") {
    // The join timeout of 4 s is shorter than the lease of 5 s, which holds in its place.
    CHECK(story.Tell(R"(
      > hush 7400ms
      > a beats
      > wait 2s
      > b beats
      > rest 60s
    )") == Flat(R"(
      > hush 7400ms
      > a beats
      > wait 2s
      > b beats
      > rest 60s
    )"));
  }
  SECTION("for hours: this daemon was suspended with the job, while it waited for a word, too") {
    const std::string quiet = R"(
      > hush 4s
      > sleep 3600s
      > sleep 3600s
      > b beats
      > a beats
      > rest 60s
    )";
    CHECK(story.Tell(quiet) == Flat(quiet));
  }
  SECTION("for longer than the join timeout, lived through: they are lost, and none is blamed") {
    CHECK_THAT(story.Tell("> hush 12s\n"),
               Catch::Contains("given up by the daemon: silent, as every node of the job"));
    CHECK(story.job().state().conduct().records.empty());
  }
  CHECK(story.job().state().failure_count() == 0);
}

TEST_CASE("a daemon that slept while another agent claimed a rank counts no wait as over") {
  Hello hello = Nodes(2, 2);
  hello.max_restarts = 1;
  Story story(hello);
  story.Tell(R"(
    > a hello rank=0
    > b hello rank=1
    > a ready
    > b ready
    > a fails rank=0 code=3
    > a ready
    > b' hello rank=1
  )");
  CHECK(story.Tell("> sleep 3600s") == "\n> sleep 3600s\n");  // b is still stopping its workers
  CHECK_THAT(story.Tell("> b beats\n> b ready"), Catch::Contains("b: epoch 2 node 1 of 2"));
}

TEST_CASE("a daemon that slept through the join timeout waits for the rest of it") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello
    a: welcome
    > a ready
    > rest 2s
    > sleep 3600s
    > a beats
    > rest 1900ms
    > rest 100ms
    a: close timed out: 1 of at least 2 nodes ready when the join timeout of 4s was over
    a: end OK
  )");
}

}  // namespace
}  // namespace convene::rendezvous
