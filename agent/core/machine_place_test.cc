// A node's place in its epoch when the stream to a daemon with a journal breaks.
#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "agent/core/machine.h"
#include "agent/core/testing/machine_story.h"

namespace convene::agent {
namespace {

using rendezvous::HandOver;
using rendezvous::StopKind;
using rendezvous::Welcome;
using story::Node;

TEST_CASE("a daemon that was started again and remembers: the workers never notice") {
  Node node;
  node.RunSafely();
  CHECK(node.LoseStream().empty());
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1 never-hosts");
  CHECK(node.WelcomeBack(1, true).empty());
  CHECK(node.state_.phase == Phase::kRunning);
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  node.Exit(0, 0);
  CHECK(node.Exit(1, 0) == "send(1) succeeded");
  CHECK(node.Feed(WorkersGone{}).empty());
}

TEST_CASE("what happened while the daemon was away is told when it is back") {
  SECTION("the workers succeeded") {
    Node node;
    node.RunSafely();
    node.LoseStream();
    node.Exit(0, 0);
    node.Exit(1, 0);
    CHECK(node.Feed(WorkersGone{}).empty());
    CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1 never-hosts");
    CHECK(node.WelcomeBack(1, true) == "send(1) succeeded");
  }
  SECTION("a worker failed, and all are gone by now") {
    Node node;
    node.RunSafely();
    node.LoseStream();
    CHECK(node.Exit(1, 3) == "stop abort SIGTERM");
    CHECK(node.Feed(WorkersGone{}).empty());
    node.After(absl::Seconds(1));
    CHECK(node.WelcomeBack(1, true) == "send(1) failure rank=5 exit code 3; store");
    CHECK(node.Feed(StoreStarted{7001}) == "send(1) ready a:7001");
  }
  SECTION("a worker failed just before, and the others are still being stopped") {
    Node node;
    node.RunSafely();
    CHECK(node.Exit(1, 3) == "send(1) failure rank=5 exit code 3; stop abort SIGTERM");
    node.LoseStream();
    node.After(absl::Seconds(1));
    CHECK(node.WelcomeBack(1, true) == "send(1) failure rank=5 exit code 3");
    CHECK(node.StopIn(1, StopKind::kAbort).empty());
    CHECK(node.Feed(WorkersGone{}) == "store");
  }
  SECTION("but not to an epoch that it was not of") {
    Node node;
    node.RunSafely();
    node.LoseStream();
    node.Exit(1, 3);
    node.Feed(WorkersGone{});
    node.After(absl::Seconds(1));
    CHECK(node.WelcomeBack(1, false) == "store");
    node.Feed(StoreStarted{7001});
    node.LoseStream();
    CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=0 never-hosts");
    CHECK(node.WelcomeBack(1, true) == "send(1) ready a:7001");
  }
}

TEST_CASE("a Ready that a decided epoch may rest on is said again with the same store") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeBack(0, false);
  node.Feed(StoreStarted{7000});
  node.LoseStream();
  CHECK(node.state_.phase == Phase::kWaiting);
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0 holds=0 never-hosts");
  SECTION("the epoch was decided") {
    CHECK(node.WelcomeBack(0, true) == "send(0) ready a:7000");
    CHECK(node.Assign(1) == "start epoch=1");
  }
  SECTION("the daemon knows nothing of it") {
    CHECK(node.WelcomeBack(0, false) == "store");
    CHECK(node.Feed(StoreStarted{7001}) == "send(0) ready a:7001");
  }
}

TEST_CASE("a stop that was missed comes after the welcome") {
  Node node;
  node.RunSafely();
  node.LoseStream();
  node.After(absl::Seconds(1));
  node.WelcomeBack(1, true);
  CHECK(node.StopIn(1, StopKind::kAbort) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "store");
}

TEST_CASE("a daemon that remembers, but not this node: as without a journal") {
  Node node;
  node.RunSafely();
  node.LoseStream();
  node.After(absl::Seconds(1));
  CHECK(node.WelcomeBack(1, false) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "store");
}

TEST_CASE("cut off from the daemon, the workers are dead when it may go on without this node") {
  Node node;
  node.RunSafely();  // a lease of 8 s, from now on
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  node.LoseStream();
  node.After(absl::Seconds(1));
  node.LoseStream(absl::UnavailableError("no answer"));
  CHECK(node.After(absl::Milliseconds(3990)) == "open last_epoch=1 holds=1 never-hosts");
  CHECK(node.After(absl::Milliseconds(10)) == "stop abort SIGTERM");  // 7 s
  CHECK_THAT(node.state_.why, Catch::Contains("no sign for 7s"));
  CHECK(node.After(absl::Milliseconds(990)).empty());
  CHECK(node.After(absl::Milliseconds(10)) == "kill");  // 8 s
}

TEST_CASE(
    "an answered heartbeat moves the fence to when it was sent, not to when it was answered") {
  Node node;
  node.RunSafely();
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  CHECK(node.Hear().empty());  // the first
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
  CHECK(node.After(absl::Milliseconds(999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "stop abort SIGTERM");  // 2 + 8 - 1
}

TEST_CASE("a link that answers keeps the workers running for ever") {
  Node node;
  node.RunSafely();
  for (int i = 0; i < 50; ++i) {
    CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
    CHECK(node.Hear().empty());
  }
}

TEST_CASE("the lease runs from the Hello, so a late Welcome is followed by a heartbeat at once") {
  Node node;
  node.Feed(Begin{});
  node.hello_at_ = node.now_;
  node.now_ = node.now_ + absl::Seconds(3);
  const rendezvous::Welcome welcome{absl::Seconds(8), absl::Seconds(2), false, true};
  CHECK(node.Daemon(0, {Epoch(), welcome}) == "store");
  CHECK(node.After(absl::ZeroDuration()) == "send(0) heartbeat");
  CHECK(node.After(absl::Seconds(1)).empty());
  CHECK(node.After(absl::Seconds(1)) == "send(0) heartbeat");
}

TEST_CASE("a daemon that is merely down, as its machine says, stops nobody") {
  Node node;
  node.RunSafely();
  node.LoseStream();
  for (int i = 0; i < 29; ++i) {
    CHECK(node.After(absl::Seconds(2)) == "open last_epoch=1 holds=1 never-hosts");
    node.Feed(StreamEnded{absl::UnavailableError("Connection refused"), node.now_});
  }
  CHECK(node.state_.phase == Phase::kRunning);
  CHECK(node.After(absl::Seconds(2)) == "open last_epoch=1 holds=1 never-hosts");
  CHECK(node.WelcomeBack(1, true).empty());
}

TEST_CASE("a daemon that was there after the stream broke may have gone on without this node") {
  Node node;
  node.RunSafely();
  node.After(absl::Seconds(1));
  node.LoseStream();
  CHECK(node.After(absl::ZeroDuration()) == "open last_epoch=1 holds=1 never-hosts");
  // It took the connection, and was killed then.
  node.Feed(StreamEnded{absl::UnavailableError("Socket closed")});
  node.After(absl::Seconds(2));
  for (int i = 0; i < 3; ++i) {
    node.Feed(StreamEnded{absl::UnavailableError("Connection refused"), node.now_});
    CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1 never-hosts");
  }
  node.Feed(StreamEnded{absl::UnavailableError("Connection refused"), node.now_});
  CHECK_THAT(node.After(absl::Seconds(1)), Catch::Contains("stop abort SIGTERM"));
}

TEST_CASE("after a pause nobody knows when the stream broke, so refusals prove nothing") {
  Node node;
  node.RunSafely();  // a lease of 8 s
  node.now_ = node.now_ + absl::Seconds(3);
  node.Feed(Paused{absl::Seconds(2)});
  SECTION("the daemon may have gone on without this node, and been killed then") {
    node.LoseStream();
    for (int i = 0; i < 3; ++i) {
      CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1 never-hosts");
      node.Feed(StreamEnded{absl::UnavailableError("Connection refused"), node.now_});
    }
    CHECK_THAT(node.After(absl::Seconds(1)), Catch::Contains("stop abort SIGTERM"));
  }
  SECTION("a heartbeat that was answered since then tells that it had not") {
    CHECK(node.After(absl::ZeroDuration()) == "send(1) heartbeat");
    node.Hear();
    node.LoseStream();
    for (int i = 0; i < 20; ++i) {
      CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1 never-hosts");
      node.Feed(StreamEnded{absl::UnavailableError("Connection refused"), node.now_});
    }
    CHECK(node.state_.phase == Phase::kRunning);
  }
}

TEST_CASE("a daemon without a memory may have come and gone between two refusals") {
  Node node;
  node.Run();  // a lease of 5 min
  node.state_.rules.hello.join_timeout = absl::Hours(1);
  node.LoseStream();
  for (int i = 0; i < 149; ++i) {
    CHECK(node.After(absl::Seconds(2)) == "open last_epoch=1");
    node.Feed(StreamEnded{absl::UnavailableError("Connection refused"), node.now_});
  }
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1; stop abort SIGTERM");
  CHECK(node.After(absl::Seconds(1)) == "kill");
}

TEST_CASE("a stream that breaks is dialled again at once, but not again and again") {
  Node node;
  node.RunSafely();
  node.LoseStream();
  CHECK(node.After(absl::ZeroDuration()) == "open last_epoch=1 holds=1 never-hosts");
  node.WelcomeBack(1, true);
  node.LoseStream();
  CHECK(node.After(absl::ZeroDuration()).empty());
  CHECK(node.After(absl::Milliseconds(50)) == "open last_epoch=1 holds=1 never-hosts");
  node.WelcomeBack(1, true);
  node.After(absl::Seconds(1));
  node.LoseStream();
  CHECK(node.After(absl::ZeroDuration()) == "open last_epoch=1 holds=1 never-hosts");
}

TEST_CASE("after the job's end the next run may begin: the fence shortens the grace") {
  Node node;
  node.RunSafely();  // a lease of 8 s
  CHECK(node.CloseWith(rendezvous::Outcome::kFailed) == "stop abort SIGTERM");
  node.LoseStream();
  CHECK(node.After(absl::Milliseconds(7999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "kill");
}

TEST_CASE("the fence needs no journal") {
  Node node;
  node.Run();  // a lease of 5 min
  node.LoseStream();
  node.After(absl::Seconds(1));
  node.LoseStream(absl::UnavailableError("no answer"));
  CHECK(node.After(absl::Seconds(50)) == "open last_epoch=1");
  node.LoseStream(absl::UnavailableError("no answer"));
  node.state_.link_deadline = MonotonicTime::InfiniteFuture();
  CHECK(node.After(absl::Seconds(248)) == "open last_epoch=1; stop abort SIGTERM");
  CHECK(node.After(absl::Seconds(1)) == "kill");
}

TEST_CASE("a process that hosts the daemon has no fence: they sleep and wake together") {
  Node node;
  node.hosts_ = true;
  node.Run();
  CHECK(node.After(absl::Hours(1)) == "send(1) heartbeat");
  CHECK(node.state_.phase == Phase::kRunning);
}

TEST_CASE("an agent that was paused beyond its lease lets its workers rest until it knows more") {
  Node node;
  node.RunSafely();  // a lease of 8 s
  node.After(absl::Seconds(2));
  CHECK(node.After(absl::Minutes(1)) == "send(1) heartbeat; rest");
  SECTION("the daemon slept as well: the epoch goes on") {
    CHECK(node.Hear().empty());  // The answer to the heartbeat from before the pause.
    CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
    CHECK(node.Hear() == "wake");
    CHECK(node.state_.phase == Phase::kRunning);
    CHECK(node.After(absl::Seconds(2)) == "send(1) heartbeat");
    CHECK(node.After(absl::Seconds(3)) == "send(1) heartbeat; stop abort SIGTERM");
  }
  SECTION("the daemon went on without it: no worker runs again") {
    CHECK_THAT(node.LoseStream(), Catch::StartsWith("stop abort SIGTERM; kill"));
    CHECK(node.state_.dead_by <= node.now_);
  }
  SECTION("nobody answers: the fence") {
    node.Hear();
    node.After(absl::Seconds(7));
    CHECK_THAT(node.After(absl::Seconds(1)), Catch::Contains("stop abort SIGTERM; kill"));
  }
  SECTION("a signal is passed on, and answered when they wake") {
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
    node.Hear();
    CHECK(node.Hear() == "wake");
    CHECK(node.state_.phase == Phase::kStopping);
    CHECK_FALSE(node.state_.killed);
  }
  SECTION("the peers have failed meanwhile") {
    CHECK(node.StopIn(1, StopKind::kAbort) == "stop abort SIGTERM");
    node.Hear();
    CHECK(node.Hear() == "wake");
  }
  if (node.state_.phase != Phase::kRunning && node.state_.verdict == std::nullopt) {
    node.Feed(WorkersGone{});
    CHECK(node.state_.resting_since == std::nullopt);
  }
}

TEST_CASE("a pause that ends between the fence and the end of the lease is a pause, too") {
  Node node;
  node.RunSafely();  // a lease of 8 s
  node.now_ = node.now_ + absl::Milliseconds(7500);
  node.Feed(Paused{absl::Seconds(5)});
  CHECK(node.After(absl::ZeroDuration()) == "send(1) heartbeat; rest");
  CHECK(node.Hear() == "wake");
}

TEST_CASE("a pause during a stop for a checkpoint does not use up its grace") {
  Node node;
  node.hosts_ = true;
  node.RunSafely();
  CHECK(node.StopIn(1, StopKind::kCheckpoint) == "stop checkpoint SIGTERM spare-sessions");
  node.now_ = node.now_ + absl::Hours(1);
  CHECK(node.Feed(Paused{absl::Hours(1)}).empty());
  CHECK(node.After(absl::Seconds(29)) == "send(1) heartbeat");
  CHECK_THAT(node.After(absl::Seconds(1)), Catch::Contains("kill"));
}

TEST_CASE("a pause while the rendezvous is lost does not use up the time to find it") {
  Node node;
  node.RunSafely();
  node.LoseStream();
  node.LoseStream(absl::UnavailableError("no answer"));
  node.now_ = node.now_ + absl::Hours(1);
  node.Feed(Paused{absl::Hours(1)});
  CHECK_THAT(node.After(absl::ZeroDuration()), Catch::Contains("open last_epoch=1"));
  CHECK_THAT(node.LoseStream(absl::UnavailableError("no answer")), !Catch::Contains("finish"));
  CHECK(node.state_.link_deadline > node.now_ + absl::Seconds(50));
}

TEST_CASE("an epoch that is told of later than the lease starts no worker") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeBack(0, false);
  node.Feed(StoreStarted{7000});
  node.After(absl::Seconds(8));
  CHECK(node.Assign(1) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "send(1) ready a:7001");
}

TEST_CASE("the daemon gave this node up: its workers are dead when their old lease ends") {
  Node node;
  node.RunSafely();  // a lease of 8 s, from now on
  node.now_ = node.now_ + absl::Seconds(2);
  SECTION("they ran") {
    node.LoseStream();
    CHECK(node.After(absl::Seconds(3)) == "open last_epoch=1 holds=1 never-hosts");
    CHECK(node.WelcomeBack(1, false) == "stop abort SIGTERM");
  }
  SECTION("they saved, which nobody can complete any more") {
    node.StopIn(1, StopKind::kCheckpoint);
    node.LoseStream();
    CHECK(node.After(absl::Seconds(3)) == "open last_epoch=1 holds=1 never-hosts");
    CHECK(node.WelcomeBack(2, false) == "stop abort SIGTERM");
  }
  SECTION("a person had told them to end") {
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
    node.LoseStream();
    node.now_ = node.now_ + absl::Seconds(3);
  }
  node.now_ = node.now_ + absl::Milliseconds(2999);
  CHECK_THAT(node.Feed(Timer{}), !Catch::Contains("kill"));
  CHECK_THAT(node.After(absl::Milliseconds(1)), Catch::Contains("kill"));
}

TEST_CASE("nothing that follows the fence gives the workers more time than the lease") {
  Node node;
  node.RunSafely();
  SECTION("a person's signal") {
    node.LoseStream();
    CHECK_THAT(node.After(absl::Seconds(7)), Catch::Contains("stop abort SIGTERM"));
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
  }
  SECTION("a worker that crashes while it is to save") {
    node.StopIn(1, StopKind::kCheckpoint);
    node.LoseStream();
    CHECK(node.After(absl::Seconds(7)) == "open last_epoch=1 holds=1 never-hosts");
    CHECK(node.Exit(0, 0, SIGSEGV) == "stop abort SIGTERM");
  }
  CHECK(node.After(absl::Milliseconds(999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "kill");
}

TEST_CASE("a Hello tells whether workers still run, and how long their stop may take") {
  Node node;
  node.Feed(Begin{});
  CHECK_FALSE(node.hello_.has_workers);
  CHECK(node.hello_.stop_limit == absl::Seconds(30 + 30 + 30 + 10));  // two graces, KILL, a store
  node.WelcomeBack(0, false);
  node.Feed(StoreStarted{7000});
  node.Assign(1);
  node.LoseStream();
  node.After(absl::ZeroDuration());
  CHECK(node.hello_.has_workers);
  node.Exit(0, 1);
  node.LoseStream();
  node.After(absl::Seconds(2));
  CHECK(node.hello_.has_workers);
  node.Feed(WorkersGone{});
  node.LoseStream();
  node.After(absl::Seconds(2));
  CHECK_FALSE(node.hello_.has_workers);
}

TEST_CASE("the next epoch's workers have a deadline of their own") {
  Node node;
  node.RunSafely();
  node.LoseStream();
  node.After(absl::Seconds(7));
  node.Feed(WorkersGone{});
  CHECK(node.WelcomeBack(1, false) == "store");
  node.Feed(StoreStarted{7001});
  CHECK(node.Assign(2) == "start epoch=2");
  node.StopIn(2, StopKind::kAbort);
  CHECK(node.After(absl::Seconds(6)) == "send(2) heartbeat");
}

TEST_CASE("a checkpoint or a person's grace ends at the fence, too") {
  Node node;
  node.RunSafely();
  node.StopIn(1, StopKind::kCheckpoint);
  node.LoseStream();
  node.After(absl::Seconds(1));
  CHECK(node.After(absl::Seconds(6)).empty());
  CHECK(node.After(absl::Seconds(1)) == "kill");
}

// A daemon without a journal that ends in order, with a lease of 8 s from now on.
void BeHandedOver(Node* node, const std::string& state) {
  node->Feed(Begin{});
  node->hello_at_ = node->now_;
  node->Daemon(0, {Epoch(), Welcome{absl::Seconds(8), absl::Seconds(2), false, false, true}});
  node->Feed(StoreStarted{7000});
  REQUIRE(node->Assign(1) == "start epoch=1");
  CHECK(node->Daemon(1, {Epoch(), HandOver{state}}).empty());
  CHECK(node->LoseStream().empty());
}

TEST_CASE("a daemon hands its jobs over: the agent with the state hosts at once, and once") {
  Node node;
  BeHandedOver(&node, "state");
  CHECK(node.After(absl::Milliseconds(1)) == "open last_epoch=1 holds=1 with=state");
  CHECK(node.Daemon(1, {Epoch(), Welcome{absl::Seconds(8), absl::Seconds(2), true, false, true}})
            .empty());
  CHECK(node.state_.phase == Phase::kRunning);
  node.LoseStream();
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1");
}

TEST_CASE("an agent without the state leaves the port to the agents that have it") {
  Node node;
  BeHandedOver(&node, "");
  CHECK(node.After(absl::Milliseconds(1)) == "open last_epoch=1 holds=1 never-hosts");
}

TEST_CASE("what was handed over is void when the lease is over, whatever was refused meanwhile") {
  Node node;
  BeHandedOver(&node, "state");
  const auto refuse = [&] { node.Feed(StreamEnded{absl::UnavailableError("refused"), node.now_}); };
  CHECK(node.After(absl::Milliseconds(1)) == "open last_epoch=1 holds=1 with=state");
  refuse();
  CHECK(node.After(absl::Milliseconds(6998)) == "open last_epoch=1 holds=1 with=state");
  refuse();
  CHECK(node.After(absl::Milliseconds(1)) == "stop abort SIGTERM");  // 7 s
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1; kill");
}

TEST_CASE("what was handed over is void when another daemon knows nothing of the job") {
  Node node;
  BeHandedOver(&node, "state");
  node.After(absl::Milliseconds(1));
  CHECK(node.WelcomeIn(0) == "stop checkpoint SIGTERM spare-sessions");
  node.LoseStream();
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1");
}

TEST_CASE("a node without workers that lost its rendezvous says once what it waits for") {
  const auto word = Catch::Contains(
      "say waiting for a rendezvous at head:29400, for 30s in all. The last one is gone (it ends)");
  Node node;
  node.state_.rules.hello.join_timeout = absl::Seconds(30);
  node.Run();
  SECTION("it was ready") {
    node.StopIn(1, StopKind::kAbort);
    node.Feed(WorkersGone{});
    node.Feed(StoreStarted{7001});
    node.LoseStream(absl::UnavailableError("it ends"));
  }
  SECTION("its workers outlived it for a while") {
    node.LoseStream(absl::UnavailableError("it ends"));
    node.After(absl::Seconds(1));
    node.Exit(1, 3);
    node.Feed(WorkersGone{});
  }
  CHECK_THAT(node.After(absl::Seconds(9)), !word);
  const std::string said = node.After(absl::Seconds(1));
  CHECK_THAT(said, word && Catch::Contains("`convene serve`, serves this run again"));
  CHECK_THAT(node.After(absl::Seconds(10)), !word);
}

TEST_CASE("a node that lost a daemon with a memory is not told to start one without") {
  Node node;
  node.state_.rules.hello.join_timeout = absl::Seconds(30);
  node.Run();
  node.StopIn(1, StopKind::kAbort);
  node.Feed(WorkersGone{});
  node.Feed(StoreStarted{7001});
  node.state_.term = 2;
  node.LoseStream(absl::UnavailableError("it ends"));
  CHECK_THAT(node.After(absl::Seconds(10)),
             Catch::Contains("A daemon with the memory of that one, started there, goes on") &&
                 !Catch::Contains("`convene serve`"));
}

TEST_CASE("a node that keeps its place says so of a lost rendezvous, too, after the wait before") {
  const auto word = Catch::Contains("say waiting for a rendezvous at head:29400");
  Node node;
  node.state_.rules.hello.join_timeout = absl::Seconds(30);
  node.RunSafely();
  node.StopIn(1, StopKind::kAbort);
  node.Feed(WorkersGone{});
  node.Feed(StoreStarted{7001});
  CHECK_THAT(node.After(absl::Seconds(10)), Catch::Contains("say waiting for a place"));
  node.LoseStream(absl::UnavailableError("it ends"));
  CHECK_THAT(node.After(absl::Seconds(9)), !word);
  CHECK_THAT(node.After(absl::Seconds(1)), word);
}

}  // namespace
}  // namespace convene::agent
