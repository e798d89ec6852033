// A job's events, incidents and stragglers, as people see them.
#include <catch2/catch.hpp>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rendezvous/quorum/job.h"

namespace convene::rendezvous {
namespace {

using Catch::Contains;

// A job of two nodes with four workers each.
struct TwoNodes {
  explicit TwoNodes(bool excludes_stragglers = false, absl::Duration restart_window = {}) {
    hello.job_id = "run";
    hello.local_world_size = 4;
    hello.nodes_min = 1;
    hello.nodes_max = 2;
    hello.nodes_expected = 2;
    hello.max_restarts = 9;
    hello.restart_window = restart_window;
    hello.lease = absl::Hours(1);
    hello.excludes_stragglers = excludes_stragglers;
    job = std::make_unique<Job>(now, hello, Epoch());
    for (const int64_t id : {1, 2}) {
      hello.host = id == 1 ? "a" : "b";
      REQUIRE(job->Join(now, MemberId(id), Incarnation(id), hello, &outbox).ok());
    }
    BothReady();
  }

  void Say(int64_t id, const AgentEvent& event) {
    job->Receive(now, MemberId(id), job->state().epoch(), event, &outbox);
  }
  void BothReady() {
    Say(1, Ready{"a", 1});
    Say(2, Ready{"b", 1});
  }
  // A step of a second, by all ranks; rank `slow`, and `too`, works `factor` times as long.
  void Step(int slow, double factor, int too = -1) {
    now = now + absl::Seconds(1);
    ++step;
    for (const int64_t id : {1, 2}) {
      Heartbeat heartbeat{WorkerProgress{step, 1, "step"}, {}};
      for (int local = 0; local < 4; ++local) {
        const int64_t number = local + 4 * (id - 1);
        const bool is_slow = number == slow || number == too;
        heartbeat.ranks.push_back({.local_rank = local,
                                   .step = step,
                                   .phase = "step",
                                   .compute_ms = is_slow ? 500 * factor : 500,
                                   .wait_ms = is_slow ? 1 : 500 * factor - 499,
                                   .steps = 1});
      }
      Say(id, heartbeat);
    }
  }
  void Fail(int64_t id, int rank, const std::string& why) {
    Say(id, WorkerFailure{.global_rank = rank,
                          .host = id == 1 ? "a" : "b",
                          .signal = SIGSEGV,
                          .why = why,
                          .last_log_lines = {"words of rank " + absl::StrCat(rank)}});
  }
  std::string Events() const {
    std::vector<std::string> kinds;
    for (const EventView& event : job->View(now).events) kinds.push_back(event.kind);
    return absl::StrJoin(kinds, ", ");
  }

  Hello hello;
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(100));
  int64_t step = 0;
  Outbox outbox;
  std::unique_ptr<Job> job;
};

TEST_CASE("each decision is an event with the log's words") {
  TwoNodes story;
  CHECK(story.Events() == "node joined, node joined, epoch formed");
  story.Fail(2, 5, "killed by SIGSEGV");
  CHECK(story.Events() == "node joined, node joined, epoch formed, failure, stop");
  story.BothReady();
  story.Say(1, WorkersSucceeded{});
  story.Say(2, WorkersSucceeded{});
  CHECK(story.Events() ==
        "node joined, node joined, epoch formed, failure, stop, epoch formed, job over");
  const JobView view = story.job->View(story.now);
  CHECK(view.events[0].number == 1);
  CHECK(view.events[0].text == "a joined");
  CHECK(view.events[3].text == "rank 5 on b: killed by SIGSEGV");
  CHECK(view.events[5].epoch == Epoch(2));
  CHECK(view.events[5].time == absl::UnixEpoch() + absl::Hours(100));
  const std::string logged = "job run " + view.events[5].text;
  CHECK(std::any_of(story.outbox.log.begin(), story.outbox.log.end(),
                    [&](const Outbox::LogLine& line) { return line.text == logged; }));
}

TEST_CASE("a wait on purpose is in the log of every daemon, because no agent tells its reason") {
  TwoNodes story;
  for (int i = 0; i < 2; ++i) {
    story.Say(1, WorkerFailure{.global_rank = 0, .host = "a", .why = "75", .costs_budget = false});
    story.BothReady();
  }
  std::vector<std::string> untold;
  for (const Outbox::LogLine& line : story.outbox.log) {
    if (line.is_untold) untold.push_back(line.text);
  }
  REQUIRE(untold.size() == 1);
  CHECK_THAT(untold[0],
             Catch::Contains("2 times in a row with the same nodes: the next epoch waits"));
}

TEST_CASE("only the last events are kept, and their numbers go on") {
  TwoNodes story;
  for (int i = 0; i < 200; ++i) {
    story.now = story.now + absl::Minutes(1);
    story.Say(1, WorkerFailure{.global_rank = 0, .host = "a", .why = "75", .costs_budget = false});
    story.BothReady();
  }
  const JobView view = story.job->View(story.now);
  CHECK(view.events.size() == Chronicle::kMostEvents);
  CHECK(view.events.back().number > 400);
  CHECK(view.events.front().number ==
        view.events.back().number - static_cast<int64_t>(Chronicle::kMostEvents) + 1);
  CHECK(view.incidents.empty());  // a restart that workers ask for is no incident
}

TEST_CASE("an epoch that fails leaves a report, with its echo and what was done") {
  TwoNodes story;
  story.Step(-1, 1);
  story.Fail(2, 5, "killed by SIGSEGV");
  story.Fail(1, 0, "killed by SIGABRT");
  JobView view = story.job->View(story.now);
  REQUIRE(view.incidents.size() == 1);
  CHECK(view.incidents[0].number == 1);
  CHECK(view.incidents[0].epoch == Epoch(1));
  CHECK(view.incidents[0].cause == "rank 5 on b: killed by SIGSEGV");
  CHECK(view.incidents[0].host == "b");
  CHECK(view.incidents[0].verdict == "code");
  REQUIRE(view.incidents[0].failures.size() == 2);
  CHECK(view.incidents[0].failures[0].last_log_lines[0] == "words of rank 5");
  CHECK(view.incidents[0].failures[1].global_rank == 0);
  REQUIRE(view.incidents[0].places.size() == 8);
  CHECK(view.incidents[0].places[5] == "rank 5 on b: step 1, step");
  CHECK(view.incidents[0].outcome.empty());
  story.BothReady();
  view = story.job->View(story.now);
  CHECK_THAT(view.incidents[0].outcome, Contains("epoch 2 formed"));
}

TEST_CASE("the same failure on the same node is counted; a lost node is an incident too") {
  TwoNodes story;
  for (int i = 0; i < 3; ++i) {
    story.Fail(1, 1, "killed by SIGSEGV");
    story.BothReady();
    story.now = story.now + absl::Hours(2);  // no blame that excludes the node
  }
  story.Fail(2, 5, "killed by SIGSEGV");
  JobView view = story.job->View(story.now);
  REQUIRE(view.incidents.size() == 4);  // newest first
  CHECK(view.incidents[0].times_here == 1);
  CHECK(view.incidents[1].times_here == 3);
  CHECK(view.incidents[3].times_here == 1);
  story.BothReady();
  story.job->Disconnect(story.now, MemberId(2), &story.outbox);
  view = story.job->View(story.now);
  CHECK(view.incidents[0].cause == "b is lost: its connection closed");
  CHECK(view.incidents[0].host == "b");
  CHECK(view.incidents[0].verdict == "node");
  CHECK(view.incidents[0].failures.empty());
}

TEST_CASE("a failure is the same one at another step and after another time") {
  TwoNodes story;
  for (int i = 1; i <= 3; ++i) {
    story.Fail(1, 1,
               absl::StrCat("hang: no step for ", 300 + i, " s (limit ", 300 + 10 * i,
                            " s), phase step, step ", 1700 * i));
    story.BothReady();
    story.now = story.now + absl::Hours(2);  // no blame that excludes the node
  }
  for (int i = 1; i <= 2; ++i) {
    story.Say(2, WorkerFailure{.global_rank = 5,
                               .host = "b",
                               .signal = SIGKILL,
                               .why = absl::StrCat("killed by SIGKILL (out of memory? The kernel "
                                                   "counts ",
                                                   i, i == 1 ? " OOM kill" : " OOM kills", ")")});
    story.BothReady();
    story.now = story.now + absl::Hours(2);
  }
  story.Say(2, WorkerFailure{.global_rank = 5, .host = "b", .exit_code = 1, .why = "exit code 1"});
  story.BothReady();
  story.now = story.now + absl::Hours(2);
  story.Say(2, WorkerFailure{.global_rank = 5, .host = "b", .exit_code = 3, .why = "exit code 3"});
  const JobView view = story.job->View(story.now);
  REQUIRE(view.incidents.size() == 7);  // newest first
  CHECK(view.incidents[0].times_here == 1);
  CHECK(view.incidents[1].times_here == 1);
  CHECK(view.incidents[2].times_here == 2);
  CHECK(view.incidents[4].times_here == 3);
}

TEST_CASE("of two tracebacks the same error is the same failure, whatever its numbers") {
  TwoNodes story;
  const std::vector<std::string> errors = {"RuntimeError: CUDA out of memory. Tried 17 MiB",
                                           "RuntimeError: CUDA out of memory. Tried 2.5 MiB",
                                           "FileExistsError: runs/exp1 exists"};
  for (const std::string& error : errors) {
    story.Say(1, WorkerFailure{.global_rank = 1,
                               .host = "a",
                               .exit_code = 1,
                               .why = "exit code 1",
                               .last_log_lines = {"Traceback (most recent call last):", error}});
    story.BothReady();
    story.now = story.now + absl::Hours(2);
  }
  const JobView view = story.job->View(story.now);
  REQUIRE(view.incidents.size() == 3);  // newest first
  CHECK(view.incidents[0].times_here == 1);
  CHECK(view.incidents[1].times_here == 2);
}

TEST_CASE("a failed job's close tells of the other failures before") {
  TwoNodes story;
  for (const char* const error : {"MemoryError", "MemoryError", "OSError: it exists"}) {
    WorkerFailure failure = {.global_rank = 1, .host = "a", .exit_code = 1, .why = "exit code 1"};
    failure.last_log_lines = {"Traceback (most recent call last):", error};
    failure.is_final = error[0] == 'O';
    story.Say(1, failure);
    story.BothReady();
    story.now = story.now + absl::Hours(2);
  }
  std::string why;
  for (const auto& item : story.outbox.items) {
    const auto* event = std::get_if<DaemonEvent>(&item.what);
    const auto* close = event == nullptr ? nullptr : std::get_if<Close>(&event->body);
    if (close != nullptr) why = close->why;
  }
  CHECK(why ==
        "rank 1 on a: exit code 1, which a restart would not mend; epoch 1 failed otherwise: rank "
        "1 on a: exit code 1: MemoryError");
}

TEST_CASE("a long traceback is judged by all of its lines, and its end is kept") {
  TwoNodes story;
  WorkerFailure failure = {.global_rank = 1, .host = "a", .exit_code = 1, .why = "exit code 1"};
  failure.last_log_lines.push_back("Traceback (most recent call last):");
  for (int i = 0; i < 10; ++i) failure.last_log_lines.push_back(absl::StrCat("    line", i, "()"));
  failure.last_log_lines.push_back("ValueError: bad shape");
  WorkerFailure echo = failure;
  echo.last_log_lines.back() = "RuntimeError: Connection closed by peer";
  story.Say(2, echo);
  story.Say(1, failure);
  JobView view = story.job->View(story.now);
  CHECK(view.incidents[0].verdict == "code");
  CHECK(view.incidents[0].certainty == "sure");
  for (int i = 0; i < 2; ++i) {
    REQUIRE(view.incidents[0].failures.size() == 2);
    REQUIRE(view.incidents[0].failures[1].last_log_lines.size() == 8);
    CHECK(view.incidents[0].failures[1].last_log_lines.back() == "ValueError: bad shape");
    // It stays so when the next epoch fails.
    story.BothReady();
    story.Fail(1, 0, "killed by SIGSEGV");
    view = story.job->View(story.now);
    view.incidents.erase(view.incidents.begin());
  }
  CHECK(view.incidents[0].verdict == "code");
}

TEST_CASE("a node that left as unfit is the node's, with workers or without") {
  for (const bool has_workers : {false, true}) {
    TwoNodes story;
    story.Say(2, Leave{"This node cannot start the workers: fork", /*is_unfit=*/true, has_workers});
    const JobView view = story.job->View(story.now);
    REQUIRE(view.incidents.size() == 1);
    CHECK(view.incidents[0].verdict == "node");
  }
  TwoNodes story;
  story.Say(2, Leave{"The program ./a cannot be started"});
  CHECK(story.job->View(story.now).incidents[0].verdict == "code");
}

TEST_CASE("a view tells which failures no longer count for --max-restarts") {
  TwoNodes story(/*excludes_stragglers=*/false, absl::Minutes(10));
  for (int i = 0; i < 2; ++i) {
    story.Fail(1, 1, "killed by SIGSEGV");
    story.BothReady();
    story.now = story.now + absl::Minutes(6);
  }
  JobView view = story.job->View(story.now);
  CHECK(view.restart_count == 2);
  CHECK(view.failures_outside_window == 1);
}

TEST_CASE("the echo of a lost node is not judged in its place") {
  TwoNodes story;
  for (int i = 1; i <= 2; ++i) {
    story.job->Disconnect(story.now, MemberId(2), &story.outbox);
    // The second time nobody heard of the loss before the stop.
    if (i == 1) {
      story.Say(1, WorkerFailure{.global_rank = 0,
                                 .host = "a",
                                 .exit_code = 1,
                                 .why = "exit code 1",
                                 .last_log_lines = {"Connection closed by peer"}});
    }
    const JobView view = story.job->View(story.now);
    REQUIRE(view.incidents.size() == static_cast<size_t>(i));
    CHECK(view.incidents[0].cause == "b is lost: its connection closed");
    CHECK(view.incidents[0].verdict == "node");
    CHECK(view.incidents[0].evidence.front() == "b is lost: its connection closed");
    CHECK(view.incidents[0].failures.size() == (i == 1 ? 1 : 0));
    CHECK(view.incidents[0].times_here == i);
    story.now = story.now + absl::Hours(2);
    REQUIRE(story.job->Join(story.now, MemberId(2), Incarnation(2 + i), story.hello, &story.outbox)
                .ok());
    story.Say(2, Ready{"b", 1});  // First: an epoch would begin with a alone.
    story.Say(1, Ready{"a", 1});
  }
}

TEST_CASE("only the last incidents are kept") {
  TwoNodes story;
  for (int i = 0; i < 40; ++i) {
    story.job->chronicle().AddIncident(story.now, Epoch(i), "cause", "a", {});
  }
  const JobView view = story.job->View(story.now);
  CHECK(view.incidents.size() == Chronicle::kMostIncidents);
  CHECK(view.incidents.front().number == 40);
}

TEST_CASE(
    "a straggler is told in the status, the events and the log; it costs nothing by default") {
  TwoNodes story;
  for (int i = 0; i < 40; ++i) story.Step(6, 1.3);
  JobView view = story.job->View(story.now);
  REQUIRE(view.stragglers.size() == 1);
  CHECK(view.stragglers[0].kind == "rank");
  CHECK(view.stragglers[0].rank == 6);
  CHECK(view.stragglers[0].host == "b");
  CHECK(view.stragglers[0].slower_by == Approx(0.3));
  CHECK_THAT(view.events.back().text, Contains("rank 6 on b: slow rank, by 30 %"));
  CHECK(view.events.back().kind == "straggler found");
  for (int i = 0; i < 40; ++i) story.Step(6, 1);
  CHECK(story.job->View(story.now).stragglers.empty());
  CHECK(story.job->View(story.now).events.back().kind == "straggler gone");
  for (int i = 0; i < 40; ++i) story.Step(6, 1.3);
  story.Fail(1, 1, "killed by SIGSEGV");
  CHECK(story.job->View(story.now).stragglers.size() == 1);
  story.BothReady();
  CHECK(story.job->state().member_count() == 2);
  CHECK(story.job->View(story.now).stragglers.empty());  // a new epoch, a new judgement
}

TEST_CASE("--straggler-policy exclude leaves its node out of the next epoch") {
  TwoNodes story(/*excludes_stragglers=*/true);
  for (int i = 0; i < 40; ++i) story.Step(6, 1.3);
  story.Fail(1, 1, "killed by SIGSEGV");
  story.BothReady();
  CHECK(story.job->state().member_count() == 1);
  const JobView view = story.job->View(story.now);
  REQUIRE(view.nodes.size() == 2);
  CHECK(view.nodes[1].host == "b");
  CHECK(view.nodes[1].state == "cooling down");
  CHECK_THAT(view.nodes[1].why, Contains("straggler: rank 6 on b"));
  CHECK_THAT(story.Events(), Contains("node excluded, epoch formed"));
}

TEST_CASE("a node with two stragglers is excluded where one of them is quick again") {
  TwoNodes story(/*excludes_stragglers=*/true);
  for (int i = 0; i < 40; ++i) story.Step(6, 1.3, 4);
  CHECK(story.job->View(story.now).stragglers.size() == 2);
  for (int i = 0; i < 40; ++i) story.Step(4, 1.3);
  CHECK(story.job->View(story.now).stragglers.size() == 1);
  story.Fail(1, 1, "killed by SIGSEGV");
  story.BothReady();
  CHECK(story.job->state().member_count() == 1);
}

TEST_CASE("a node that is quick again is not excluded") {
  TwoNodes story(/*excludes_stragglers=*/true);
  for (int i = 0; i < 40; ++i) story.Step(6, 1.3);
  for (int i = 0; i < 40; ++i) story.Step(6, 1);
  story.Fail(1, 1, "killed by SIGSEGV");
  story.BothReady();
  CHECK(story.job->state().member_count() == 2);
}

}  // namespace
}  // namespace convene::rendezvous
