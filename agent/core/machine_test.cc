#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/core/machine.h"
#include "agent/core/testing/machine_story.h"

namespace convene::agent {
namespace {

using rendezvous::Close;
using rendezvous::Outcome;
using rendezvous::StopKind;
using story::Node;

TEST_CASE("a job that goes well") {
  Node node;
  CHECK(node.Feed(Begin{}) == "open last_epoch=0");
  CHECK(node.WelcomeIn(0) == "store");
  CHECK(node.Feed(StoreStarted{7000}) == "send(0) ready a:7000");
  CHECK(node.Assign(1) == "start epoch=1");
  CHECK(node.Exit(0, 0).empty());
  CHECK(node.Exit(1, 0) == "send(1) succeeded");
  CHECK(node.Feed(WorkersGone{}).empty());
  CHECK(node.CloseWith(Outcome::kSucceeded) == "finish 0");
  CHECK(node.result_.explanation.empty());
}

TEST_CASE(
    "a failed worker is reported before its neighbours are stopped, then the node is ready again") {
  Node node;
  node.Run();
  CHECK(node.Exit(1, 3) == "send(1) failure rank=5 exit code 3; stop abort SIGTERM");
  CHECK(node.Exit(0, 0, SIGTERM).empty());  // A consequence, no second failure.
  CHECK(node.StopIn(1, StopKind::kAbort).empty());
  CHECK(node.Feed(WorkersGone{}) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "send(1) ready a:7001");
  CHECK(node.Assign(2) == "start epoch=2");
}

TEST_CASE("exit code 75 costs nothing, if it is the word of a session") {
  Node node;
  node.Run();
  SECTION("in session") {
    node.Feed(SessionOpened{0});
    CHECK(node.Exit(0, 75) ==
          "send(1) failure rank=4 exit code 75 (membership changed) free; stop abort SIGTERM");
  }
  SECTION("of any other program") {
    CHECK(node.Exit(0, 75) == "send(1) failure rank=4 exit code 75; stop abort SIGTERM");
  }
}

TEST_CASE(
    "workers that ignore the stop are killed when the grace is over, and given up on when even "
    "that fails") {
  Node node;
  node.Run();
  CHECK(node.StopIn(1, StopKind::kAbort) == "stop abort SIGTERM");
  CHECK(NextTimer(node.state_) < node.now_ + absl::Seconds(2));  // The heartbeat.
  CHECK(node.After(absl::Seconds(29)) == "send(1) heartbeat");
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat; kill");
  CHECK(node.After(absl::Seconds(30)) == "send(1) heartbeat; finish 71");
  CHECK_THAT(node.result_.explanation, Catch::Contains("state D"));
}

TEST_CASE("workers that all speak the session protocol get a short grace on abort") {
  Node node;
  node.Run();
  node.Feed(SessionOpened{0});
  node.Feed(SessionOpened{1});
  CHECK(node.StopIn(1, StopKind::kAbort) == "stop abort SIGTERM");
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat; kill");
}

TEST_CASE("heartbeats come once an interval") {
  Node node;
  node.Run();
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
  CHECK(node.After(absl::Milliseconds(999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "send(1) heartbeat");
}

TEST_CASE("each epoch's stop has a grace of its own, short only for its own sessions") {
  Node node;
  node.Run();
  node.Feed(SessionOpened{0});
  node.Feed(SessionOpened{1});
  node.StopIn(1, StopKind::kAbort);
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat; kill");
  node.RunAgain(2);
  CHECK(node.After(absl::Seconds(60)) == "send(2) heartbeat");
  node.StopIn(2, StopKind::kAbort);
  CHECK(node.After(absl::Seconds(29)) == "send(2) heartbeat");
  CHECK(node.After(absl::Seconds(1)) == "send(2) heartbeat; kill");
}

TEST_CASE("one foreign program among them keeps the long grace") {
  Node node;
  node.Run();
  node.Feed(SessionOpened{0});
  node.StopIn(1, StopKind::kAbort);
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
}

TEST_CASE("a worker that left its session counts as a foreign program") {
  Node node;
  node.Run();
  node.Feed(SessionOpened{0});
  node.Feed(SessionOpened{1});
  node.Feed(SessionLeft{1});
  node.StopIn(1, StopKind::kAbort);
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
}

TEST_CASE(
    "a checkpoint stop spares the sessions the signal, and a peer's death turns it into an abort") {
  Node node;
  node.Run();
  CHECK(node.StopIn(1, StopKind::kCheckpoint) == "stop checkpoint SIGTERM spare-sessions");
  CHECK(node.StopIn(1, StopKind::kAbort) == "stop abort SIGTERM");
  CHECK(node.Exit(0, 75).empty());
  CHECK(node.Feed(WorkersGone{}) == "store");
}

TEST_CASE("a job that fails for good during a checkpoint stop makes the checkpoint void") {
  Node node;
  node.Run();
  node.Feed(SessionOpened{0});
  node.Feed(SessionOpened{1});
  node.StopIn(1, StopKind::kCheckpoint);
  SECTION("the daemon says Close alone when the budget is spent") {
    CHECK(node.CloseWith(Outcome::kFailed) == "stop abort SIGTERM");
    CHECK(node.After(absl::Seconds(1)) == "kill");
    CHECK(node.Feed(WorkersGone{}) == "finish 1");
  }
  SECTION("what a person's signal has begun keeps its grace") {
    node.Signal({SIGTERM});
    CHECK(node.CloseWith(Outcome::kFailed).empty());
    CHECK(node.After(absl::Seconds(1)).empty());
  }
}

TEST_CASE("a worker that crashes while it is to save has failed, and what is saved is void") {
  for (const auto& [code, signal, why] :
       {std::tuple(0, SIGSEGV, "killed by SIGSEGV"), std::tuple(3, 0, "exit code 3"),
        std::tuple(0, SIGKILL, "killed by SIGKILL (out of memory?)")}) {
    Node node;
    node.Run();
    node.Feed(SessionOpened{1});
    node.StopIn(1, StopKind::kCheckpoint);
    CHECK(node.Exit(1, code, signal) == absl::StrCat("send(1) failure rank=5 ", why,
                                                     " while it was to save and stop; "
                                                     "stop abort SIGTERM"));
    CHECK(node.Exit(0, 0, SIGABRT).empty());  // Its echo.
    CHECK(node.Feed(WorkersGone{}) == "store");
  }
}

TEST_CASE("what a stop for a checkpoint brings about is no failure") {
  for (const auto& [code, signal] :
       {std::pair(0, 0), std::pair(75, 0), std::pair(0, SIGTERM), std::pair(128 + SIGTERM, 0),
        std::pair(1, 0)}) {  // the last: of a foreign program
    Node node;
    node.Run();
    node.StopIn(1, StopKind::kCheckpoint);
    CHECK(node.Exit(0, code, signal).empty());
    CHECK(node.After(absl::Seconds(30)) == "send(1) heartbeat; kill");
    CHECK(node.Exit(1, 0, SIGKILL).empty());
    CHECK(node.Feed(WorkersGone{}) == "store");
  }
}

TEST_CASE("workers that a person's signal ends are not reported, however they end") {
  Node node;
  node.Run();
  node.StopIn(1, StopKind::kCheckpoint);
  node.Signal({SIGINT});
  CHECK(node.Exit(0, 1) == "send(1) leave with-workers");
}

TEST_CASE("a node that succeeded runs again when a peer fails") {
  Node node;
  node.Run();
  node.Exit(0, 0);
  node.Exit(1, 0);
  node.Feed(WorkersGone{});
  CHECK(node.StopIn(1, StopKind::kAbort) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "send(1) ready a:7001");
}

TEST_CASE("a signal is passed on, and Leave is said as the first worker ends and after the last") {
  Node node;
  node.Run();
  CHECK(node.Signal({SIGINT}) == "stop silent SIGINT");
  CHECK(node.Exit(0, 0, SIGINT) == "send(1) leave with-workers");
  CHECK(node.Exit(1, 0, SIGINT).empty());
  SECTION("an older daemon answers the first") {
    CHECK(node.CloseWith(Outcome::kLeft).empty());
    CHECK(node.LoseStream(absl::OkStatus()).empty());
    CHECK(node.Feed(WorkersGone{}) == "finish 130");
  }
  SECTION("today's answers the second") {
    CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
    CHECK(node.CloseWith(Outcome::kLeft) == "finish 130");
  }
}

TEST_CASE("what a person's signal has begun, the daemon's words do not change") {
  Node node;
  node.Run();
  node.Signal({SIGINT});
  CHECK(node.StopIn(1, StopKind::kAbort).empty());
  CHECK(node.CloseWith(Outcome::kFailed).empty());
  CHECK(node.Feed(WorkersGone{}) == "finish 130");
}

TEST_CASE("a store that is ready after the signal is not offered any more") {
  Node node;
  node.Feed(Begin{});
  CHECK(node.WelcomeIn(0) == "store");
  CHECK(node.Signal({SIGTERM}) == "send(0) leave");
  CHECK(node.Feed(StoreStarted{7000}).empty());
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 143");
}

TEST_CASE("without an answer to Leave the agent goes after a second") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeIn(0);
  CHECK(node.Signal({SIGTERM}) == "send(0) leave");
  CHECK(node.After(absl::Milliseconds(999)).empty());
  CHECK(node.After(absl::Milliseconds(1)) == "send(0) heartbeat; finish 143");
}

TEST_CASE("a signal's echoes change nothing, however many come") {
  Node node;
  node.Run();
  CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
  const MonotonicTime deadline = node.state_.stop_deadline;
  CHECK(node.Signal({SIGTERM}).empty());
  node.now_ = node.now_ + absl::Milliseconds(15);
  CHECK(node.Signal({SIGINT}).empty());
  CHECK(node.After(absl::Seconds(15)) == "send(1) heartbeat");
  CHECK(node.Signal({SIGTERM}).empty());  // The end of a preemption's grace.
  CHECK(node.state_.stop_deadline == deadline);
  CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
  CHECK(node.Signal({SIGTERM}).empty());  // Leave may still be on its way.
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 143");
}

TEST_CASE("a second Ctrl-C, clearly later, kills at once, and the next change nothing") {
  const ReceivedSignal key = {SIGINT, /*from_kernel=*/true};
  Node node;
  node.Run();
  CHECK(node.Signal(key) == "stop silent SIGINT");
  CHECK(node.Signal(key).empty());
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
  CHECK(node.Signal(key) == "kill");
  const MonotonicTime deadline = node.state_.stop_deadline;
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
  CHECK(node.Signal(key).empty());
  CHECK(node.state_.stop_deadline == deadline);
  CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
  CHECK(node.Signal(key) == "finish 130");
}

TEST_CASE("Ctrl-C counts from when it was pressed, however late it is handled") {
  Node node;
  node.Run();
  const MonotonicTime later = node.now_ + absl::Seconds(1);
  node.Feed(SignalReceived{{SIGINT, /*from_kernel=*/true, 0, node.now_}});
  node.now_ = later + absl::Seconds(1);
  CHECK(node.Feed(SignalReceived{{SIGINT, /*from_kernel=*/true, 0, later}}) == "kill");
}

TEST_CASE("a first Ctrl-C after a scheduler's TERM says why nothing happens, once") {
  const ReceivedSignal key = {SIGINT, /*from_kernel=*/true};
  Node node;
  node.Run();
  node.Signal({SIGTERM});
  CHECK_THAT(node.Signal(key), Catch::StartsWith("say SIGINT received from the terminal, but"));
  CHECK(node.Signal(key).empty());
}

TEST_CASE("a signal while a failure is being cleaned up ends the command afterwards") {
  Node node;
  node.Run();
  node.Exit(0, 1);
  CHECK(node.Signal({SIGTERM}) == "stop silent SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
  CHECK(node.LoseStream() == "finish 143");
}

TEST_CASE("workers run on through a broken stream while the agent dials again with back-off") {
  Node node;
  node.Run();
  CHECK(node.LoseStream().empty());
  CHECK(node.After(absl::ZeroDuration()) == "open last_epoch=1");
  CHECK(node.LoseStream().empty());
  CHECK(node.After(absl::Milliseconds(25)) == "open last_epoch=1");
  CHECK(node.LoseStream().empty());
  CHECK(node.After(absl::Milliseconds(49)).empty());  // The wait doubles.
  CHECK(node.After(absl::Milliseconds(1)) == "open last_epoch=1");
  CHECK(node.state_.phase == Phase::kRunning);
}

TEST_CASE("after a good stream the first wait is short again") {
  Node node;
  node.Run();
  for (int i = 0; i < 4; ++i) {
    node.LoseStream();
    CHECK(node.After(absl::Seconds(2)) == "open last_epoch=1");
  }
  node.WelcomeIn(1);
  node.LoseStream();
  CHECK(node.After(absl::Milliseconds(25)) == "open last_epoch=1");
}

TEST_CASE("the group stopped when this node's stream broke: abort, and ready again") {
  for (const int daemon_epoch : {1, 2}) {
    Node node;
    node.Run();
    node.LoseStream();
    node.After(absl::Seconds(1));
    CHECK(node.WelcomeIn(daemon_epoch) == "stop abort SIGTERM");
    CHECK(node.Feed(WorkersGone{}) == "store");
  }
}

TEST_CASE("a daemon that lost its memory: all peers are healthy, so they may save") {
  Node node;
  node.Run();
  node.LoseStream();
  node.After(absl::Seconds(1));
  CHECK(node.WelcomeIn(0) == "stop checkpoint SIGTERM spare-sessions");
  CHECK(node.After(absl::Seconds(1)) == "send(0) heartbeat");  // No epoch: nothing to stop.
  CHECK(node.Feed(WorkersGone{}) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "send(1) ready a:7001");
  CHECK(node.After(absl::Seconds(1)) == "send(1) heartbeat");
}

TEST_CASE("workers that fail while the stream is broken are started again after it") {
  Node node;
  node.Run();
  node.LoseStream();
  CHECK(node.Exit(0, 9) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}).empty());
  CHECK(node.After(absl::Seconds(1)) == "open last_epoch=1");
  CHECK(node.WelcomeIn(1) == "store");
}

TEST_CASE("an Assignment that is repeated changes nothing, another one stops what runs") {
  Node node;
  node.Run();
  CHECK(node.Assign(1).empty());
  CHECK(node.Assign(2) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "store");
  CHECK(node.Feed(StoreStarted{7001}) == "send(2) ready a:7001");
}

TEST_CASE("a rendezvous that stays away ends the command with 69 and stops its workers first") {
  Node node;
  node.Run();
  node.LoseStream();
  node.After(absl::Seconds(1));
  node.now_ = node.now_ + absl::Seconds(59);
  CHECK(node.LoseStream() == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "finish 69");
  CHECK_THAT(node.result_.explanation,
             Catch::Contains("head:29400 was lost") && Catch::Contains("connection reset"));
}

TEST_CASE(
    "an endpoint that was no daemon from the start ends the command, one that was is awaited") {
  Node wrong_port;
  wrong_port.Feed(Begin{});
  CHECK(wrong_port.LoseStream(absl::FailedPreconditionError("no daemon")) == "finish 64");
  Node restarting;
  restarting.Run();
  CHECK(restarting.LoseStream(absl::FailedPreconditionError("no daemon")).empty());
  CHECK(restarting.After(absl::Seconds(1)) == "open last_epoch=1");
}

TEST_CASE("a refusal before the first Welcome is a usage error, a later one may pass") {
  Node wrong_token;
  wrong_token.Feed(Begin{});
  CHECK(wrong_token.LoseStream(absl::PermissionDeniedError("another token")) == "finish 64");
  Node node;
  node.Run();
  node.LoseStream();
  CHECK_THAT(node.After(absl::ZeroDuration()), Catch::Contains("open"));
  CHECK(node.LoseStream(absl::PermissionDeniedError("it has expired")) ==
        "say this node is refused, and goes on asking: it has expired");
  CHECK_THAT(node.After(absl::Milliseconds(50)), Catch::Contains("open"));
  CHECK(node.LoseStream(absl::PermissionDeniedError("it has expired")).empty());
  CHECK(node.state_.phase == Phase::kRunning);
  SECTION("it is over in time, and another one is told again") {
    node.After(absl::Seconds(1));
    CHECK(node.WelcomeBack(1, true).empty());
    node.LoseStream();
    CHECK_THAT(node.LoseStream(absl::PermissionDeniedError("it has expired")),
               Catch::Contains("say this node is refused"));
  }
  SECTION("it stays") {
    CHECK_THAT(node.After(absl::Seconds(60)), Catch::Contains("open"));
    CHECK(node.LoseStream(absl::PermissionDeniedError("it has expired")) == "stop abort SIGTERM");
    CHECK(node.Feed(WorkersGone{}) == "finish 64");
    CHECK_THAT(node.result_.explanation, Catch::Contains("refused this node: it has expired"));
  }
}

TEST_CASE("a rendezvous that never answers ends the command with 69 after connect_timeout") {
  Node node;
  node.Feed(Begin{});
  CHECK(node.LoseStream().empty());
  node.now_ = node.now_ + absl::Seconds(10);
  CHECK(node.LoseStream() == "finish 69");
  CHECK_THAT(node.result_.explanation, Catch::Contains("could not be reached within 10s"));
}

TEST_CASE("a daemon that accepts and never says Welcome counts as away") {
  Node node;
  node.Feed(Begin{});
  CHECK(node.After(absl::Seconds(9)).empty());
  CHECK(node.After(absl::Seconds(2)) ==
        "say the rendezvous at head:29400 does not answer yet; trying for 10s in all");
  CHECK(node.After(absl::Seconds(1)) == "close; finish 69");
}

TEST_CASE("a hello that contradicts the job is a usage error, another incarnation is not") {
  Node refused;
  refused.Feed(Begin{});
  CHECK(refused.LoseStream(absl::InvalidArgumentError("--nnodes is 2, the job has 4")) ==
        "finish 64");
  CHECK_THAT(refused.result_.explanation, Catch::Contains("--nnodes is 2"));
  Node replaced;
  replaced.Run();
  CHECK(replaced.LoseStream(absl::AbortedError("incarnation 7 took the place of 3")) ==
        "stop abort SIGTERM");
  CHECK(replaced.Feed(WorkersGone{}) == "finish 1");
}

TEST_CASE(
    "a program that cannot be started is the person's error, a node out of processes is the "
    "node's") {
  Node node;
  node.Run();
  CHECK(node.Feed(SpawnFailed{absl::NotFoundError("program x not found")}) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "send(1) leave");
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 64");
  Node full;
  full.Run();
  full.Feed(SpawnFailed{absl::ResourceExhaustedError("fork")});
  full.Feed(WorkersGone{});
  CHECK(full.CloseWith(Outcome::kLeft) == "finish 71");
}

TEST_CASE("a failed job is explained in one paragraph") {
  Node node;
  node.Run();
  rendezvous::WorkerFailure failure;
  failure.global_rank = 5;
  failure.local_rank = 1;
  failure.host = "b";
  failure.pid = 4711;
  failure.signal = SIGKILL;
  failure.last_log_lines = {"step 41", "step 42"};
  CHECK(node.Daemon(1, {Epoch(), Close{Outcome::kFailed, "the restart budget of 3 is spent",
                                       failure}}) == "stop abort SIGTERM");
  CHECK(node.Feed(WorkersGone{}) == "finish 1");
  CHECK(
      node.result_.explanation ==
      "Job job failed: the restart budget of 3 is spent. The first failure was rank 5 (local "
      "rank 1, pid 4711) on b: "
      "killed by SIGKILL (out of memory?). The kernel, the scheduler or a person sends SIGKILL. To "
      "see who did: `dmesg -T` (\"Out of memory\"), the cgroup's memory.events, the scheduler's "
      "log and its memory limit. Its last lines:\n"
      "  step 41\n  step 42");
}

TEST_CASE("a job that stayed below its minimum ends with 69") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeIn(0);
  node.Feed(StoreStarted{7000});
  CHECK(node.CloseWith(Outcome::kTimedOut) == "finish 69");
}

TEST_CASE("another agent has this node's rank: a usage error") {
  Node node;
  node.Feed(Begin{});
  CHECK(node.LoseStream(absl::AlreadyExistsError("node rank 0 is taken: by a")) == "finish 64");
  CHECK_THAT(node.result_.explanation, Catch::Contains("refused this node: node rank 0 is taken"));
}

TEST_CASE("another pod has this node's rank: its end is awaited, and not for ever") {
  Node node;
  node.state_.rules.awaits_node_rank = true;
  node.Feed(Begin{});
  const absl::Status taken = absl::AlreadyExistsError("node rank 0 is taken: by a");
  CHECK(node.LoseStream(taken) ==
        "say waiting for another agent to end: node rank 0 is taken: by a");
  CHECK(node.After(absl::Seconds(2)) == "open last_epoch=0");
  CHECK(node.LoseStream(taken).empty());  // once is enough
  node.now_ = node.now_ + absl::Seconds(10);
  CHECK(node.LoseStream(taken) == "finish 69");
  CHECK_THAT(node.result_.explanation,
             Catch::Contains("did not let this node in within 10s: node"));
}

TEST_CASE("the command that shows what is missing has the port that was bound, where any may be") {
  Node node;
  node.state_.rules.endpoint = "127.0.0.1:0";
  node.endpoint_ = "127.0.0.1:35555";
  node.Feed(Begin{});
  node.WelcomeIn(0);
  node.Feed(StoreStarted{7000});
  CHECK_THAT(node.After(absl::Seconds(10)),
             Catch::Contains("`convene status --endpoint 127.0.0.1:35555` shows"));
}

TEST_CASE("a wait for other nodes is told once, with the command that shows who is missing") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeIn(0);
  node.Feed(StoreStarted{7000});
  CHECK(node.After(absl::Seconds(9)) == "send(0) heartbeat");
  CHECK(node.After(absl::Seconds(1)) ==
        "send(0) heartbeat; say waiting for a place in job job: `convene status --endpoint "
        "head:29400` shows which nodes are there and what is missing");
  CHECK(node.After(absl::Seconds(60)) == "send(0) heartbeat");
  REQUIRE(node.Assign(1) == "start epoch=1");
  CHECK(node.After(absl::Seconds(60)) == "send(1) heartbeat");
}

TEST_CASE("a rendezvous that is not there yet is told of once, with the reason and the patience") {
  Node node;
  node.state_.rules.connect_timeout = absl::Seconds(60);
  node.Feed(Begin{});
  node.LoseStream(absl::UnavailableError("connect: Connection refused"));
  CHECK_THAT(node.After(absl::Seconds(10)),
             Catch::Contains("say the rendezvous at head:29400 does not answer yet; trying for 1m "
                             "in all. The last try: stream ended (connect: Connection refused)"));
  node.LoseStream(absl::UnavailableError("connect: Connection refused"));
  CHECK_THAT(node.After(absl::Seconds(10)), !Catch::Contains("say"));
}

TEST_CASE("a store port that is taken is a usage error") {
  Node node;
  node.Feed(Begin{});
  node.WelcomeIn(0);
  CHECK(node.Feed(StoreFailed{absl::AlreadyExistsError("port 29500 is taken")}) == "send(0) leave");
  CHECK(node.CloseWith(Outcome::kLeft) == "finish 64");
}

}  // namespace
}  // namespace convene::agent
