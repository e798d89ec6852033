// A node whose workers have all ended with 0, while processes that they left still run.
#include <catch2/catch.hpp>
#include <csignal>

#include "agent/core/machine.h"
#include "agent/core/testing/machine_story.h"

namespace convene::agent {
namespace {

using rendezvous::Outcome;
using rendezvous::StopKind;
using story::Node;

// Two workers that succeeded in epoch 1; an upload of one of them goes on.
struct Uploading : Node {
  explicit Uploading(bool safely = false) {
    safely ? RunSafely() : Run();
    CHECK(Exit(0, 0).empty());
    CHECK(Exit(1, 0) == "send(1) succeeded");
  }
};

TEST_CASE("success is told when the last worker ends, not when what it left has ended") {
  Uploading node;
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
  CHECK(node.Feed(WorkersGone{}).empty());
  CHECK(node.CloseWith(Outcome::kSucceeded) == "finish 0");
}

TEST_CASE(
    "when the job has succeeded, what the workers left may finish, and the lease is no matter") {
  Uploading node(/*safely=*/true);
  CHECK(node.CloseWith(Outcome::kSucceeded).empty());
  CHECK(node.LoseStream(absl::OkStatus()).empty());
  CHECK(node.After(absl::Seconds(29)).empty());
  CHECK(node.Feed(WorkersGone{}) == "finish 0");
}

TEST_CASE("a signal ends what the workers left, but takes nothing from a job that has succeeded") {
  Uploading node;
  SECTION("the daemon has said so before") {
    CHECK(node.CloseWith(Outcome::kSucceeded).empty());
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
    CHECK(node.Feed(WorkersGone{}) == "finish 0");
  }
  SECTION("it says so while they end") {
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
    CHECK(node.CloseWith(Outcome::kSucceeded).empty());
    CHECK(node.Feed(WorkersGone{}) == "finish 0");
  }
  SECTION("it says so when they have ended: its word crossed the Leave") {
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
    CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
    CHECK(node.CloseWith(Outcome::kSucceeded) == "finish 0");
  }
  SECTION("the other nodes still work: nobody knows yet how the job ends") {
    CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
    CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
    CHECK(node.CloseWith(Outcome::kLeft) == "finish 143");
  }
}

TEST_CASE("a second Ctrl-C kills what the workers left") {
  const ReceivedSignal key = {SIGINT, /*from_kernel=*/true};
  Uploading node;
  node.CloseWith(Outcome::kSucceeded);
  CHECK(node.Signal(key) == "stop silent SIGINT");
  node.now_ = node.now_ + absl::Seconds(1);
  CHECK(node.Signal(key) == "kill");
  CHECK(node.Feed(WorkersGone{}) == "finish 0");
}

TEST_CASE("a peer fails: what the workers left ends, then the node runs again") {
  Uploading node;
  CHECK(node.StopIn(1, StopKind::kAbort) == "stop abort SIGTERM");
  node.RunAgain(2);
}

TEST_CASE("a job that fails for good ends what the workers left") {
  Uploading node;
  CHECK(node.CloseWith(Outcome::kFailed) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "finish 1");
}

TEST_CASE("a stream that breaks leaves a success as it is") {
  Uploading node(/*safely=*/true);
  node.LoseStream();
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1 never-hosts");
  CHECK(node.hello_.has_workers);
  SECTION("the daemon closed the job, and its word was lost") {
    CHECK(node.CloseWith(Outcome::kSucceeded).empty());
    CHECK(node.Feed(WorkersGone{}) == "finish 0");
  }
  SECTION("the daemon was started again") {
    CHECK(node.WelcomeBack(1, true) == "send(1) succeeded");
    CHECK(node.Feed(WorkersGone{}).empty());
  }
  SECTION("the daemon goes on without this node: no process of the epoch may outlive its lease") {
    CHECK(node.WelcomeBack(1, false) == "stop abort SIGTERM");
    CHECK(node.After(absl::Milliseconds(6999)) == "send(0) heartbeat");
    CHECK(node.After(absl::Milliseconds(1)) == "kill");
    SECTION("then it joins again") { CHECK(node.Feed(WorkersGone{}) == "store"); }
    SECTION("unless the job is over meanwhile") {
      CHECK(node.CloseWith(Outcome::kSucceeded).empty());
      CHECK(node.Feed(WorkersGone{}) == "finish 0");
    }
  }
}

TEST_CASE("a node that succeeded asks any daemon for its place: the others still use its store") {
  Uploading node;
  node.Feed(WorkersGone{});
  node.LoseStream();
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1 holds=1");
  SECTION("the daemon kept it") { CHECK(node.WelcomeBack(1, true) == "send(1) succeeded"); }
  SECTION("the daemon did not, or is an older one") { CHECK(node.WelcomeIn(1) == "store"); }
}

TEST_CASE("the fence ends what the workers left, and the success stays to be told") {
  Uploading node(/*safely=*/true);  // a lease of 8 s, from now on
  node.LoseStream();
  node.After(absl::Seconds(1));
  node.LoseStream(absl::UnavailableError("no answer"));
  CHECK(node.After(absl::Seconds(6)) ==
        "open last_epoch=1 holds=1 never-hosts; stop abort SIGTERM");
  CHECK(node.After(absl::Milliseconds(999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "kill");
  CHECK(node.Feed(WorkersGone{}).empty());
  CHECK(node.WelcomeBack(1, true) == "send(1) succeeded");
}

}  // namespace
}  // namespace convene::agent
