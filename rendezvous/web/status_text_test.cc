#include "rendezvous/web/status_text.h"

#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace convene::rendezvous {
namespace {

NodeView Node(const std::string& host, int group_rank, const std::string& state) {
  NodeView node;
  node.host = host;
  node.agent = AgentId(std::hash<std::string>()(host));
  node.local_world_size = 8;
  node.group_rank = group_rank;
  node.state = state;
  node.heard_ago = absl::Milliseconds(420);
  return node;
}

JobView Job() {
  JobView job;
  job.job_id = "j";
  job.phase = "running";
  job.epoch = Epoch(3);
  job.why = "all 2 nodes are there";
  job.max_restarts = 5;
  job.nodes_max = 2;
  return job;
}

TEST_CASE("a job is shown with its reason, a line for each node, and its last failures") {
  JobView job = Job();
  job.nodes = {Node("node001", 0, "running"), Node("n2", 1, "running"), Node("n3", -1, "spare")};
  job.nodes[0].progress = WorkerProgress{1200, 3.25, "step"};
  job.nodes[2].why = "waits to replace a lost node";
  job.last_failures.push_back({Epoch(2), "rank 9 on n2: killed by SIGKILL", absl::Seconds(185)});
  job.last_failures.push_back({Epoch(1), "n4 left", absl::Milliseconds(3)});
  CHECK(StatusText({job}, 10) ==
        "job j: running, epoch 3, 3 nodes (--nnodes 1:2), not in the epoch: 1 spare, restarts 0 of "
        "5\n"
        "  all 2 nodes are there\n"
        "  step 1200, 3.25 steps/s\n"
        "  group  ranks  host     state           step  steps/s  heard  why\n"
        "      0    0-7  node001  running (step)  1200     3.25  400ms\n"
        "      1   8-15  n2       running            -        -  400ms\n"
        "      -      -  n3       spare              -        -  400ms  waits to replace a lost "
        "node\n"
        "  last failures:\n"
        "    epoch 2, 3m5s ago: rank 9 on n2: killed by SIGKILL\n"
        "    epoch 1, 0s ago: n4 left\n");
  CHECK(StatusText({}, 10) == "no jobs\n");
}

TEST_CASE("a node that waits shows no step of an epoch that is over, and a loss no sign of NaN") {
  JobView job = Job();
  job.nodes = {Node("a", 0, "running"), Node("b", -1, "ready")};
  for (NodeView& node : job.nodes) node.progress = WorkerProgress{25, 9.97, "step"};
  job.nodes[0].ranks = {{.loss = -std::numeric_limits<double>::quiet_NaN()}};
  const std::string text = StatusText({job}, 10);
  CHECK(absl::StrContains(text, "  step 25, 9.97 steps/s, loss NaN\n"));
  CHECK(absl::StrContains(text, "  a     running (step)    25     9.97  400ms\n"));
  CHECK(absl::StrContains(text, "  b     ready              -        -  400ms\n"));
}

TEST_CASE("restarts are told that were there, and that count") {
  const auto told = [](const std::string& phase, int failures, int outside) {
    JobView job = Job();
    job.phase = phase;
    job.restart_count = failures;
    job.failures_outside_window = outside;
    job.max_restarts = 2;
    const std::string text = StatusText({job}, 10);
    const std::string head = absl::StrCat("job j: ", phase, ", epoch 3, 0 nodes (--nnodes 1:2), ");
    REQUIRE(absl::StartsWith(text, head));
    return text.substr(head.size(), text.find('\n') - head.size());
  };
  CHECK(told("running", 1, 0) == "restarts 1 of 2");
  CHECK(told("running", 4, 3) == "restarts 1 of 2 (4 in all)");
  CHECK(told("failed", 3, 0) == "failures 3, --max-restarts 2");
  CHECK(told("failed", 0, 0) == "failures 0, --max-restarts 2");
  CHECK(told("succeeded", 2, 0) == "restarts 2 of 2");
  CHECK(told("succeeded", 4, 0) == "failures 4, --max-restarts 2");  // with --restart-window
}

TEST_CASE("no text of others steers the terminal") {
  JobView job = Job();
  job.nodes = {Node("n1\x1B[2J", 0, "running")};
  JobView later = job;
  later.nodes[0].state = "lost";
  later.nodes[0].why = "\x1B]0;mine\x07\nn2 is well";
  CHECK(absl::StrContains(StatusText({job}, 10), "  n1?[2J  running"));
  CHECK(!absl::StrContains(StatusText({later}, 10), "\x1B"));
  for (const std::string& line : StatusChanges({job}, {later})) {
    INFO(line);
    CHECK(!absl::StrContains(line, "\x1B"));
    CHECK(!absl::StrContains(line, "\n"));
  }
}

TEST_CASE("what ranks tell stands in the table, and what holds them up below it") {
  JobView job = Job();
  job.nodes = {Node("n1", 0, "running"), Node("n2", 1, "running")};
  job.nodes[0].ranks = {{.local_rank = 0, .compute_ms = 240, .wait_ms = 72.5, .loss = 2},
                        {.local_rank = 1, .compute_ms = 312.3, .wait_ms = 0.5, .loss = 3}};
  job.stragglers.push_back({"rank", 1, "n1", 0.3, "it is slow", absl::Seconds(90)});
  job.stragglers.push_back({"disk", -1, "n2", 0.3, "saves take long", absl::Seconds(5)});
  job.events.push_back({1, absl::UnixEpoch(), "epoch", "epoch 3 began", Epoch(3)});
  CHECK(StatusText({job}, 10) ==
        "job j: running, epoch 3, 2 nodes (--nnodes 1:2), restarts 0 of 5\n"
        "  all 2 nodes are there\n"
        "  loss 2.5\n"
        "  group  ranks  host  state    step  steps/s  heard  compute+wait  why\n"
        "      0    0-7  n1    running     -        -  400ms     312+0.5ms\n"
        "      1   8-15  n2    running     -        -  400ms             -\n"
        "  these hold the others up:\n"
        "    rank 1 on n1: it is slow, for 1m30s\n"
        "    disk on n2: saves take long, for 5s\n"
        "  last event: epoch 3 began\n");
  JobView later = job;
  later.stragglers.pop_back();
  CHECK(StatusChanges({job}, {later}) ==
        std::vector<std::string>{"job j: holds nobody up any more: disk on n2"});
  CHECK(StatusChanges({later}, {job}) ==
        std::vector<std::string>{"job j: holds the others up: disk on n2: saves take long"});
  JobView link = later;
  link.stragglers.push_back({"link", -1, "", 0.2, "all wait longer", absl::Seconds(5)});
  CHECK(StatusChanges({later}, {link}) ==
        std::vector<std::string>{"job j: holds the others up: link: all wait longer"});
  later.stragglers[0].since += absl::Seconds(1);
  later.stragglers.push_back(job.stragglers[1]);
  CHECK(StatusChanges({job}, {later}).empty());
}

TEST_CASE("of a large job as many nodes are shown as there is room for") {
  JobView job = Job();
  for (int i = 0; i < 100; ++i) job.nodes.push_back(Node(absl::StrCat("n", i), i, "running"));
  const std::string text = StatusText({job}, 3);
  CHECK(absl::StrContains(text, "n2"));
  CHECK_FALSE(absl::StrContains(text, "n3 "));
  CHECK(absl::EndsWith(text, "  and 97 more nodes\n"));
}

TEST_CASE("changes are told once each, and what only ages is none") {
  JobView before = Job();
  before.nodes = {Node("a", 0, "running"), Node("b", 1, "running"), Node("c", -1, "joining")};
  JobView after = before;
  after.nodes[0].heard_ago = absl::Seconds(4);
  after.nodes[0].progress = WorkerProgress{1, 1, "step"};
  CHECK(StatusChanges({before}, {after}).empty());
  after.epoch = Epoch(4);
  after.why = "b is lost: its connection closed";
  after.nodes = {Node("a", 0, "running"), Node("c", 1, "running")};
  CHECK(StatusChanges({before}, {after}) ==
        std::vector<std::string>{"job j: running, epoch 4, 2 nodes (--nnodes 1:2), restarts 0 of "
                                 "5: b is lost: its connection closed",
                                 "job j: c: running, group rank 1", "job j: b: gone"});
  CHECK(StatusChanges({after}, {}) == std::vector<std::string>{"job j: forgotten"});
  // Why the job began another epoch comes first, and once.
  JobView failed = after;
  failed.last_failures.push_back({Epoch(4), "rank 3 on a: killed by SIGKILL", absl::Seconds(1)});
  CHECK(StatusChanges({after}, {failed}) ==
        std::vector<std::string>{"job j: epoch 4 failed: rank 3 on a: killed by SIGKILL"});
  JobView again = failed;
  again.epoch = Epoch(5);
  again.last_failures[0].ago = absl::Seconds(2);
  CHECK(StatusChanges({failed}, {again}).size() == 1);
  again.last_failures.push_back({Epoch(5), "rank 3 on a: killed by SIGKILL", absl::Seconds(0)});
  CHECK(StatusChanges({failed}, {again}).front() ==
        "job j: epoch 5 failed: rank 3 on a: killed by SIGKILL");
}

TEST_CASE("a large job's changes are bounded") {
  JobView job = Job();
  for (int i = 0; i < 100; ++i) job.nodes.push_back(Node(absl::StrCat("n", i), i, "running"));
  const std::vector<std::string> lines = StatusChanges({}, {job});
  CHECK(lines.size() == 22);
  CHECK(lines.back() == "job j: and 80 more nodes changed");
}

}  // namespace
}  // namespace convene::rendezvous
