// Hangs and health checks.
#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <utility>

#include "agent/core/machine.h"
#include "agent/core/testing/machine_story.h"

namespace convene::agent {
namespace {

using story::Outcome;
using story::StopKind;

class Node : public story::Node {
 public:
  explicit Node(bool has_health_check) {
    state_.rules.has_health_check = has_health_check;
    hosts_ = true;  // no fence
    Feed(Begin{});
    CHECK(WelcomeIn(0) == "store");
  }
  std::string Hung(int epoch, int local_rank) {
    return Feed(WorkerHung{
        Epoch(epoch), local_rank, 100 + local_rank, "hang: no step for 312 s", {"#0  futex_wait"}});
  }
  std::string Abort(int epoch) { return StopIn(epoch, StopKind::kAbort); }
  // The heartbeat of the next second, which is answered, and what else is done then.
  std::string Beat() {
    std::string actions = After(absl::Seconds(1));
    CHECK(Daemon(0, {Epoch(), rendezvous::Heard{}}).empty());
    return actions;
  }
};

// As far as two running workers of epoch 1.
struct RunningNode : Node {
  RunningNode() : Node(/*has_health_check=*/false) {
    CHECK(Feed(StoreStarted{7000}) == "send(0) ready a:7000");
    CHECK(Assign(1) == "start epoch=1");
  }
};

TEST_CASE("a worker that hangs is a failure that costs, and ends the epoch as any other") {
  RunningNode node;
  CHECK(node.Hung(1, 1) == "send(1) failure rank=5 hang: no step for 312 s; stop abort SIGTERM");
  CHECK(node.Exit(1, 0, SIGTERM).empty());
  CHECK(node.Exit(0, 0, SIGTERM).empty());
  CHECK(node.Feed(WorkersGone{}) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "send(1) ready a:7001");
  CHECK(node.Assign(2) == "start epoch=2");
}

TEST_CASE("a hang counts only while its epoch runs and the worker lives") {
  RunningNode node;
  CHECK(node.Hung(7, 1).empty());
  CHECK(node.Exit(1, 0).empty());
  CHECK(node.Hung(1, 1).empty());
  CHECK(node.Abort(1) == "stop abort SIGTERM");
  CHECK(node.Hung(1, 0).empty());
}

// As far as the check of the first epoch.
struct CheckedNode : Node {
  CheckedNode() : Node(/*has_health_check=*/true) {
    CHECK(Feed(StoreStarted{7000}) == "check last_epoch=0");
  }
};

TEST_CASE("a node is ready when its health check has passed, in each epoch") {
  CheckedNode node;
  CHECK(node.Feed(HealthChecked{absl::OkStatus()}) == "send(0) ready a:7000");
  CHECK(node.Assign(1) == "start epoch=1");
  CHECK(node.Abort(1) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "check last_epoch=1");
  CHECK(node.Feed(HealthChecked{absl::OkStatus()}) == "send(1) ready a:7001");
}

TEST_CASE("a node that fails its health check leaves as unfit, with 71") {
  CheckedNode node;
  CHECK(node.Feed(HealthChecked{absl::FailedPreconditionError("the health check `x` ended")}) ==
        "send(0) leave unfit");
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 71");
  CHECK(node.result_.explanation == "a is unfit and leaves the job: the health check `x` ended");
}

// As far as waiting for a seat.
struct WaitingNode : CheckedNode {
  WaitingNode() {
    CHECK(Feed(HealthChecked{absl::OkStatus()}) == "send(0) ready a:7000");
    state_.tell_wait_at = MonotonicTime::InfiniteFuture();  // told already
  }
  // The actions of the five minutes until the next check, but for heartbeats.
  std::string AfterFiveMinutes() {
    for (int i = 0; i < 299; ++i) CHECK(Beat() == "send(0) heartbeat");
    return Beat();
  }
};

TEST_CASE("a node that waits for a seat is checked every five minutes, and leaves when it fails") {
  WaitingNode node;
  CHECK(node.AfterFiveMinutes() == "send(0) heartbeat; check last_epoch=0");
  CHECK(node.Feed(HealthChecked{absl::OkStatus()}).empty());
  CHECK(node.AfterFiveMinutes() == "send(0) heartbeat; check last_epoch=0");
  CHECK(node.Feed(HealthChecked{absl::FailedPreconditionError("GPU 3 is off the bus")}) ==
        "send(0) leave unfit");
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 71");
}

TEST_CASE("a seat does not wait for a check of who waited for it") {
  WaitingNode node;
  CHECK(node.AfterFiveMinutes() == "send(0) heartbeat; check last_epoch=0");
  CHECK(node.Assign(1) == "cancel check; start epoch=1");
  CHECK(node.Feed(HealthChecked{absl::FailedPreconditionError("x")}).empty());
  for (int i = 0; i < 600; ++i) CHECK(node.Beat() == "send(1) heartbeat");
}

TEST_CASE("a check of who waits for a seat goes on when its stream breaks") {
  WaitingNode node;
  CHECK(node.AfterFiveMinutes() == "send(0) heartbeat; check last_epoch=0");
  node.LoseStream();
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0");
  CHECK(node.WelcomeIn(0) == "store");
  CHECK(node.Feed(StoreStarted{7001}).empty());
  CHECK(node.Feed(HealthChecked{absl::OkStatus()}) == "send(0) ready a:7001");
}

TEST_CASE("a signal during the health check cancels it, and its late answer changes nothing") {
  CheckedNode node;
  CHECK(node.Signal({SIGTERM}) == "cancel check; send(0) leave");
  CHECK(node.Feed(HealthChecked{absl::FailedPreconditionError("x")}).empty());
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 143");
}

TEST_CASE("heartbeats go on during a health check") {
  CheckedNode node;
  CHECK(node.After(absl::Seconds(1)) == "send(0) heartbeat");
}

TEST_CASE("a stream that breaks and comes back during the check has it made once") {
  CheckedNode node;
  node.LoseStream();
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0");
  CHECK(node.WelcomeIn(0) == "store");
  CHECK(node.Feed(StoreStarted{7001}).empty());
  CHECK(node.Feed(HealthChecked{absl::OkStatus()}) == "send(0) ready a:7001");
}

TEST_CASE("a check that passes while there is no stream is made again when there is one") {
  CheckedNode node;
  node.LoseStream();
  CHECK(node.Feed(HealthChecked{absl::OkStatus()}).empty());
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=0");
  CHECK(node.WelcomeIn(0) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "check last_epoch=0");
}

}  // namespace
}  // namespace convene::agent
