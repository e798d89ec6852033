// A job's members, as stories (story.h tells how to read them): rounds, arrivals, losses,
// identities.
#include <catch2/catch.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a round forms at once when every expected node is ready") {
  Check(Story(Nodes(2, 2)), R"(
    > b hello workers=4
    b: welcome
    > a hello workers=2
    a: welcome
    > b ready
    > a ready
    a: epoch 1 node 0 of 2, ranks from 0 of 6, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 2 of 6, store a, failures 0
    > a succeeds
    > b succeeds
    b: close succeeded: the workers of every node succeeded
    b: end OK
    a: close succeeded: the workers of every node succeeded
    a: end OK
  )");
}

// Two nodes of `job` say Ready; what the assignment of the node with rank `of` says of clients.
std::string ClientsToldTo(int of, const Ready& first, const Ready& second) {
  Hello hello = Nodes(2, 2);
  hello.lease = absl::Seconds(5);
  const MonotonicTime now;
  Job job(now, hello, Epoch());
  Outbox outbox;
  for (const int rank : {0, 1}) {
    hello.host = absl::StrCat("host", rank);
    hello.node_rank = rank;
    REQUIRE(job.Join(now, MemberId(rank + 1), Incarnation(rank + 1), hello, &outbox).ok());
  }
  job.Receive(now, MemberId(1), Epoch(), first, &outbox);
  job.Receive(now, MemberId(2), Epoch(), second, &outbox);
  for (const Outbox::Item& item : outbox.items) {
    const auto* event = std::get_if<DaemonEvent>(&item.what);
    const auto* told = event == nullptr ? nullptr : std::get_if<Assignment>(&event->body);
    if (told != nullptr && told->group_rank == of) return absl::StrJoin(told->store_clients, " ");
  }
  return "no assignment";
}

TEST_CASE("the node that serves the store is told the addresses of all nodes of the epoch") {
  const Ready first = {"a", 1000, {"10.0.0.1", "fd00::1"}};
  const Ready second = {"192.0.2.7", 1000, {"10.0.0.2", "10.0.0.1"}};
  CHECK(ClientsToldTo(0, first, second) == "10.0.0.1 10.0.0.2 192.0.2.7 a fd00::1");
  CHECK(ClientsToldTo(1, first, second).empty());
}

TEST_CASE("where one node does not tell its addresses every address may come to the store") {
  const Ready first = {"a", 1000, {"10.0.0.1"}};
  CHECK(ClientsToldTo(0, first, {"b", 1000, {}}).empty());
  std::vector<std::string> many;
  for (int i = 0; i < kMostStoreClients; ++i) many.push_back(absl::StrCat("192.0.2.", i));
  CHECK(ClientsToldTo(0, first, {"b", 1000, many}).empty());
}

// As torchrun's _assign_worker_ranks.
TEST_CASE("workers of one role have ranks among themselves, in the order of their global ranks") {
  Check(Story(Nodes(4, 4)), R"(
    > a hello workers=2 role=actor
    a: welcome
    > b hello workers=1 role=critic
    b: welcome
    > c hello workers=3 role=actor
    c: welcome
    > d hello workers=4 role=critic
    d: welcome
    > a ready
    > b ready
    > c ready
    > d ready
    a: epoch 1 node 0 of 4, ranks from 0 of 10, store a, failures 0, role ranks from 0 of 5
    b: epoch 1 node 1 of 4, ranks from 2 of 10, store a, failures 0, role ranks from 0 of 5
    c: epoch 1 node 2 of 4, ranks from 3 of 10, store a, failures 0, role ranks from 2 of 5
    d: epoch 1 node 3 of 4, ranks from 6 of 10, store a, failures 0, role ranks from 1 of 5
  )");
}

TEST_CASE("with the minimum there a first round waits for the last call only") {
  Check(Story(Nodes(2, 4)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    > wait 2900ms
    > wait 100ms
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE("what the scheduler states is expected, not the maximum") {
  Hello hello = Nodes(1, 8);
  hello.nodes_expected = 2;
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE("a node that is here but not ready is waited for until the join timeout") {
  Check(Story(Nodes(1, 4)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > wait 3900ms
    > wait 100ms
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("a node that goes before the first epoch is named to the nodes that wait for it") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello
    a: welcome
    > a ready
    > b hello rank=1
    b: welcome
    > b leaves
    b: close left: SIGTERM
    b: end OK
    > wait 4s
    a: close timed out: 1 of at least 2 nodes ready when the join timeout of 4s was over; b (node rank 1) left: SIGTERM
    a: end OK
  )");
  Story lost(Nodes(3, 3));
  lost.Tell("> a hello\n> a ready\n> b hello\n> b drops");
  CHECK(lost.job().View(MonotonicTime()).why ==
        "1 of at least 3 nodes ready; b is lost: its connection closed");
  lost.Tell("> b' hello");  // It is back.
  CHECK(lost.job().View(MonotonicTime()).why == "1 of at least 3 nodes ready");
}

TEST_CASE("a node that was lost is named where the job then waits for nodes in vain") {
  Story story(Nodes(2, 2));
  story.Tell("> a hello\n> a ready\n> b hello\n> b ready\n> b drops\n> a ready");
  CHECK(story.job().View(MonotonicTime()).why ==
        "1 of at least 2 nodes ready; b is lost: its connection closed");
  CHECK_THAT(story.Tell("> wait 4s"),
             Catch::Contains("was over; b is lost: its connection closed\n"));
}

TEST_CASE("below the minimum the job closes after the join timeout") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello
    a: welcome
    > a ready
    > wait 4s
    a: close timed out: 1 of at least 2 nodes ready when the join timeout of 4s was over
    a: end OK
  )");
}

TEST_CASE("a silent node is lost after its lease, by the daemon's clock") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > wait 3s
    > a beats
    > wait 2s
    b: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s; \
       epoch 1 is over for incarnation 2
    a: stop abort: b is lost: silent for its lease of 5s
  )");
}

TEST_CASE("a job of fixed size waits for the replacement, which takes the hole") {
  Check(Story(Nodes(3, 3)), R"(
    > n1 hello
    n1: welcome
    > n2 hello
    n2: welcome
    > n10 hello
    n10: welcome
    > n10 ready
    > n2 ready
    > n1 ready
    n1: epoch 1 node 0 of 3, ranks from 0 of 3, store n1, failures 0
    n2: epoch 1 node 1 of 3, ranks from 1 of 3, store n1, failures 0
    n10: epoch 1 node 2 of 3, ranks from 2 of 3, store n1, failures 0
    > n2 leaves
    n2: close left: SIGTERM
    n2: end OK
    n1: stop abort: n2 left: SIGTERM
    n10: stop abort: n2 left: SIGTERM
    > n1 ready
    > n10 ready
    > wait 3s
    > n1 beats
    > n10 beats
    > z hello
    z: welcome
    > z ready
    n1: epoch 2 node 0 of 3, ranks from 0 of 3, store n1, failures 0
    z: epoch 2 node 1 of 3, ranks from 1 of 3, store n1, failures 0
    n10: epoch 2 node 2 of 3, ranks from 2 of 3, store n1, failures 0
  )");
}

TEST_CASE("a newcomer is let in after a checkpoint, a spare waits for a hole") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello
    a: welcome
    > a ready
    > wait 3s
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b hello
    b: welcome
    > b ready
    a: stop checkpoint: a seat is free for b: the workers save and start again
    > a ready
    a: epoch 2 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > c hello
    c: welcome
    > c ready
    > b drops
    a: stop abort: b is lost: its connection closed
    > a ready
    a: epoch 3 node 0 of 2, ranks from 0 of 2, store a, failures 0
    c: epoch 3 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE(
    "one that succeeded as the stop for a checkpoint came, and all others too, ends the job") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello
    a: welcome
    > a ready
    > wait 3s
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > b hello
    b: welcome
    > b ready
    a: stop checkpoint: a seat is free for b: the workers save and start again
    > a succeeds
    a: close succeeded: the workers of every node succeeded
    a: end OK
    b: close succeeded: the workers of every node succeeded
    b: end OK
  )");
}

TEST_CASE("epochs go on above the highest one that any agent has seen") {
  Check(Story(Nodes(1, 1)), R"(
    > a hello last_epoch=7
    a: welcome
    > a beats epoch=7
    a: stop abort: epoch 7 went on without this node (the job is in epoch 0); say Ready to join again
    > a beats epoch=7
    > a ready epoch=7
    a: epoch 8 node 0 of 1, ranks from 0 of 1, store a, failures 0
  )");
}

TEST_CASE("two living agents with one node rank: the second is refused with both hosts") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello rank=0
    a: welcome
    > b hello rank=0
    > b ready
    > a beats
    b: end ALREADY_EXISTS: node rank 0 is taken: an agent of a holds it and is alive, \
       another one of b asks for it too. Give each node its own --node-rank
  )");
}

TEST_CASE(
    "a node that came back while its old stream is half open gets its place when the old lease "
    "ends") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello rank=0
    a: welcome
    > b hello rank=1
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > wait 3s
    > b beats
    > a' hello rank=0
    > a' ready
    > wait 2s
    a': welcome
    a: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s; \
       epoch 1 is over for incarnation 1
    b: stop abort: a (node rank 0) is lost: silent for its lease of 5s
    > b ready
    a': epoch 2 node 0 of 2, ranks from 0 of 2, store a', failures 0
    b: epoch 2 node 1 of 2, ranks from 1 of 2, store a', failures 0
  )");
}

TEST_CASE("who waits for a node rank need not speak before its welcome") {
  Hello hello = Nodes(2, 2);
  hello.join_timeout = absl::Minutes(1);
  Check(Story(hello), R"(
    > a hello rank=0
    a: welcome
    > a' hello rank=0
    > wait 3s
    > b hello rank=1
    b: welcome
    > wait 2s
    a': welcome
    a: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s
    > wait 3s
    b: end UNAVAILABLE: given up by the daemon: silent for its lease of 5s
    > wait 1900ms
    > wait 100ms
    a': end UNAVAILABLE: given up by the daemon: silent for its lease of 5s
  )");
}

TEST_CASE("a second stream of the same process replaces the first") {
  Check(Story(Nodes(1, 1)), R"(
    > a hello incarnation=9
    a: welcome
    > a' hello incarnation=9
    a: end ABORTED: another stream of this agent, incarnation 9, took the place of this one of 9
    a': welcome
  )");
}

TEST_CASE("a hello that arrives after a later one of its process changes nothing") {
  Check(Story(Nodes(1, 1)), R"(
    > a' hello incarnation=9 said=12
    a': welcome
    > a' ready
    a': epoch 1 node 0 of 1, ranks from 0 of 1, store a', failures 0
    > a hello incarnation=9 said=10
    a: end UNAVAILABLE: incarnation 9 has opened another stream since this Hello
    > a drops
    > a'' hello incarnation=9 said=14 holds running=1 last_epoch=1
    a': end ABORTED: another stream of this agent, incarnation 9, went on in the place of this one of 9
    a'': welcome back in epoch 1
    > a hello incarnation=9 said=13 holds running=1 last_epoch=1
    a: end UNAVAILABLE: incarnation 9 has opened another stream since this Hello
  )");
}

TEST_CASE("a hello that contradicts the job is refused with the field and both values") {
  Check(Story(Nodes(2, 2)), R"(
    > a hello
    a: welcome
    > b hello min=1
    b: end INVALID_ARGUMENT: nodes_min (--nnodes) is 1 on this node, but the job began with 2: \
       start every node with the same command, or use another --rdzv-id for another job
    > b hello restarts=3
    b: end INVALID_ARGUMENT: max_restarts (--max-restarts) is 3 on this node, but the job began with 0: \
       start every node with the same command, or use another --rdzv-id for another job
  )");
}

TEST_CASE("when every node has left the job closes") {
  Story story(Nodes(1, 1));
  story.Tell("> a hello\n> a ready\n> a leaves");
  CHECK(story.job().closed());
  CHECK(story.job().View(MonotonicTime()).why == "no node is left");
}

TEST_CASE("the first to come back to an empty job has the whole join timeout") {
  Check(Story(Nodes(1, 1)), R"(
    > a hello
    a: welcome
    > a ready
    a: epoch 1 node 0 of 1, ranks from 0 of 1, store a, failures 0
    > a drops
    > wait 3s
    > a' hello
    a': welcome
    > wait 3900ms
    > wait 100ms
    a': close timed out: 0 of at least 1 node ready, still busy: a when the join timeout of 4s was over
    a': end OK
  )");
}

TEST_CASE("a last call begins anew when the minimum was lost in between") {
  Hello hello = Nodes(2, 4);
  hello.join_timeout = absl::Minutes(1);
  Check(Story(hello), R"(
    > a hello
    a: welcome
    > b hello
    b: welcome
    > a ready
    > b ready
    > wait 2s
    > a beats
    > b drops
    > c hello
    c: welcome
    > c ready
    > wait 2900ms
    > wait 100ms
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    c: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
  )");
}

TEST_CASE("when every node is lost the job waits for them, and then closes") {
  Story story(Nodes(1, 1));
  story.Tell("> a hello\n> a ready\n> a drops\n> wait 3900ms");
  CHECK_FALSE(story.job().closed());
  story.Tell("> wait 100ms");
  CHECK(story.job().closed());
}

}  // namespace
}  // namespace convene::rendezvous
