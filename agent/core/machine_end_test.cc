// A node's last words.
#include <catch2/catch.hpp>
#include <csignal>

#include "agent/core/machine.h"
#include "agent/core/testing/machine_story.h"

namespace convene::agent {
namespace {

using rendezvous::Outcome;
using rendezvous::StopKind;
using story::Node;

TEST_CASE("workers that the end of the grace killed have not ended in order") {
  Node node;
  node.Run();
  node.Signal({SIGTERM});
  node.Exit(0, 0, SIGTERM);
  REQUIRE(node.state_.verdict.has_value());
  SECTION("all end in time") {
    node.Exit(1, 0, SIGTERM);
    node.Feed(WorkersGone{});
    node.CloseWith(Outcome::kLeft);
    CHECK(node.result_.explanation == "Stopped by SIGTERM: the workers were ended in order.");
  }
  SECTION("one does not") {
    CHECK(node.After(absl::Seconds(30)) == "send(1) heartbeat; kill");
    node.Exit(1, 0, SIGKILL);
    node.Feed(WorkersGone{});
    CHECK(node.CloseWith(Outcome::kLeft) == "finish 143");
    CHECK_THAT(node.result_.explanation,
               Catch::StartsWith("Stopped by SIGTERM: workers that had not ended were killed: the "
                                 "grace is over") &&
                   Catch::EndsWith("; what they had not saved is lost."));
  }
  SECTION("what is left after them is no worker") {
    node.Exit(1, 0, SIGTERM);
    CHECK(node.After(absl::Seconds(30)) == "send(1) heartbeat; kill");
    node.Feed(WorkersGone{});
    node.CloseWith(Outcome::kLeft);
    CHECK_THAT(
        node.result_.explanation,
        Catch::StartsWith("Stopped by SIGTERM: the workers were ended in order, but processes "
                          "that they had left were killed: the grace is over"));
  }
}

TEST_CASE("where no worker runs a signal ends none") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeIn(0);
  CHECK(node.Signal({SIGINT}) == "send(0) leave");
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 130");
  CHECK(node.result_.explanation == "Stopped by SIGINT: no worker was running here.");
}

TEST_CASE("what ends the run later is told beside what stopped the epochs before") {
  Node node;
  node.Run();
  node.Exit(1, 3);
  node.RunAgain(2);
  SECTION("the program is gone") {
    node.Feed(SpawnFailed{absl::NotFoundError("The program x does not exist.")});
    node.Feed(WorkersGone{});
    CHECK(node.CloseWith(Outcome::kLeft) == "finish 64");
    CHECK(node.result_.explanation ==
          "The program x does not exist. Epoch 1 was stopped: rank 5: exit code 3.");
  }
  SECTION("a node was lost and nobody came") {
    node.StopIn(2, StopKind::kAbort);
    node.Feed(WorkersGone{});
    CHECK(node.CloseWith(Outcome::kTimedOut) == "finish 69");
    CHECK_THAT(node.result_.explanation,
               Catch::EndsWith(". Epoch 1 was stopped: rank 5: exit code 3. Epoch 2 was stopped: "
                               "node b was lost."));
  }
  SECTION("the failure of the same epoch is told at length, and once") {
    node.Exit(0, 7);
    node.Feed(WorkersGone{});
    node.CloseWith(Outcome::kTimedOut);
    CHECK_THAT(node.result_.explanation,
               Catch::Contains("An earlier failure: rank 4") && !Catch::Contains("Epoch 2 was") &&
                   Catch::EndsWith("\nEpoch 1 was stopped: rank 5: exit code 3."));
  }
  SECTION("only the last three are told") {
    for (int epoch = 3; epoch < 6; ++epoch) {
      node.Exit(1, epoch);
      node.RunAgain(epoch);
    }
    node.Feed(SpawnFailed{absl::NotFoundError("Gone.")});
    node.Feed(WorkersGone{});
    node.CloseWith(Outcome::kLeft);
    CHECK_THAT(node.result_.explanation, Catch::StartsWith("Gone. Epoch 2 was stopped: rank 5"));
  }
}

}  // namespace
}  // namespace convene::agent
