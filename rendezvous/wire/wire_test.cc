#include "rendezvous/wire/wire.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/status/status.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a hello crosses the wire whole") {
  Hello hello;
  hello.job_id = "job";
  hello.host = "node1";
  hello.node_rank = 3;
  hello.local_world_size = 8;
  hello.role = "trainer";
  hello.nodes_min = 2;
  hello.nodes_max = 4;
  hello.nodes_expected = 3;
  hello.max_restarts = 5;
  hello.join_timeout = absl::Seconds(11);
  hello.last_call = absl::Milliseconds(1500);
  hello.lease = absl::Seconds(7);
  hello.last_epoch = Epoch(9);
  hello.running_epoch = Epoch(8);
  hello.topology = "block2/switch1";
  hello.spares = 2;
  hello.restart_window = absl::Hours(1);
  hello.max_stuck_restarts = 4;
  hello.admission = absl::Seconds(30);
  hello.publishes_logs = true;
  hello.may_host = true;
  hello.has_workers = true;
  hello.stop_limit = absl::Seconds(70);
  hello.log_directory = "/logs/job_1";
  hello.said_at = MonotonicTime::FromEpoch(absl::Nanoseconds(1234567890123));
  const auto crossed = FromWire(ToWire(AgentEnvelope{Incarnation(~0ull), Epoch(9), hello}));
  REQUIRE_OK(crossed);
  CHECK(crossed->incarnation == Incarnation(~0ull));
  CHECK(crossed->epoch == Epoch(9));
  const Hello& there = std::get<Hello>(crossed->body);
  CHECK(there.publishes_logs);
  CHECK(there.may_host);
  CHECK(there.has_workers);
  CHECK(there.stop_limit == absl::Seconds(70));
  CHECK(there.log_directory == "/logs/job_1");
  CHECK(there.said_at == hello.said_at);
  CHECK(there.job_id == "job");
  CHECK(there.host == "node1");
  CHECK(there.node_rank == 3);
  CHECK(there.local_world_size == 8);
  CHECK(there.role == "trainer");
  CHECK(there.nodes_min == 2);
  CHECK(there.nodes_max == 4);
  CHECK(there.nodes_expected == 3);
  CHECK(there.max_restarts == 5);
  CHECK(there.join_timeout == absl::Seconds(11));
  CHECK(there.last_call == absl::Milliseconds(1500));
  CHECK(there.lease == absl::Seconds(7));
  CHECK(there.last_epoch == Epoch(9));
  CHECK(there.running_epoch == Epoch(8));
  CHECK(there.topology == "block2/switch1");
  CHECK(there.spares == 2);
  CHECK(there.restart_window == absl::Hours(1));
  CHECK(there.max_stuck_restarts == 4);
  CHECK(there.admission == absl::Seconds(30));
}

TEST_CASE("a heartbeat carries progress, or none") {
  const auto cross = [](const Heartbeat& heartbeat) {
    const auto crossed =
        FromWire(ToWire(AgentEnvelope{Incarnation(1), Epoch(2), AgentEvent(heartbeat)}));
    REQUIRE_OK(crossed);
    return std::get<Heartbeat>(std::get<AgentEvent>(crossed->body));
  };
  CHECK_FALSE(cross(Heartbeat()).progress.has_value());
  const Heartbeat there = cross(Heartbeat{WorkerProgress{17, 2.5, "checkpoint"}});
  REQUIRE(there.progress.has_value());
  CHECK(there.progress->step == 17);
  CHECK(there.progress->steps_per_second == 2.5);
  CHECK(there.progress->phase == "checkpoint");
}

const RankProgress kRank = {.local_rank = 3,
                            .step = 17,
                            .steps_per_second = 2.5,
                            .phase = "step",
                            .compute_ms = 101,
                            .wait_ms = 22,
                            .data_ms = 3,
                            .checkpoint_ms = 4,
                            .loss = 1.5,
                            .tokens_per_second = 1e6,
                            .memory_bytes = int64_t{1} << 40,
                            .memory_peak_bytes = int64_t{1} << 41,
                            .place = 2,
                            .awaits = "all_reduce #17 of dp waits for rank 3",
                            .steps = 5};

void CheckRank(const RankProgress& there) {
  CHECK(there.local_rank == 3);
  CHECK(there.step == 17);
  CHECK(there.steps_per_second == 2.5);
  CHECK(there.phase == "step");
  CHECK(there.compute_ms == 101);
  CHECK(there.wait_ms == 22);
  CHECK(there.data_ms == 3);
  CHECK(there.checkpoint_ms == 4);
  CHECK(there.loss == 1.5);
  CHECK(there.tokens_per_second == 1e6);
  CHECK(there.memory_bytes == int64_t{1} << 40);
  CHECK(there.memory_peak_bytes == int64_t{1} << 41);
  CHECK(there.awaits == "all_reduce #17 of dp waits for rank 3");
  CHECK(there.place == 2);
  CHECK(there.steps == 5);
}

TEST_CASE("a heartbeat carries each rank's progress, of as many ranks as fit into a message") {
  Heartbeat heartbeat;
  heartbeat.ranks = {kRank};
  const auto crossed =
      FromWire(ToWire(AgentEnvelope{Incarnation(1), Epoch(2), AgentEvent(heartbeat)}));
  REQUIRE_OK(crossed);
  const auto& there = std::get<Heartbeat>(std::get<AgentEvent>(crossed->body));
  REQUIRE(there.ranks.size() == 1);
  CheckRank(there.ranks[0]);

  heartbeat.ranks[0].awaits = "all_reduce\33[31m #17\nof\7dp waits for rank 3";
  const auto cleaned = ToWire(AgentEnvelope{Incarnation(1), Epoch(2), AgentEvent(heartbeat)});
  CHECK(cleaned.heartbeat().ranks(0).awaits() == "all_reduce #17 of?dp waits for rank 3");

  heartbeat.ranks = std::vector<RankProgress>(1000, kRank);
  for (RankProgress& rank : heartbeat.ranks) rank.phase = std::string(23, 'x');
  for (RankProgress& rank : heartbeat.ranks) rank.awaits = std::string(100, 'x');
  const auto wire = ToWire(AgentEnvelope{Incarnation(1), Epoch(2), AgentEvent(heartbeat)});
  CHECK(wire.heartbeat().ranks_size() == kMostRanksTold);
  CHECK(wire.ByteSizeLong() < 56 << 10);  // a message's limit is 64 KiB
}

TEST_CASE("a job's view crosses the wire whole") {
  JobView view;
  view.job_id = "job";
  view.phase = "running";
  view.epoch = Epoch(4);
  view.why = "running on 1 node";
  view.restart_count = 2;
  view.failures_outside_window = 1;
  view.max_restarts = 3;
  view.nodes_max = 2;
  NodeView node;
  node.host = "node7";
  node.group_rank = 1;
  node.state = "running";
  node.why = "took the place of node3";
  node.heard_ago = absl::Seconds(3);
  node.progress = WorkerProgress{9, 0.5, "step"};
  node.ranks = {kRank};
  view.nodes.push_back(node);
  view.last_failures.push_back({Epoch(3), "rank 1 on node3: exit code 1", absl::Minutes(2)});
  pb::JobStatus wire;
  ToWire(view, &wire);
  const JobView there = FromWire(wire);
  CHECK(there.job_id == "job");
  CHECK(there.epoch == Epoch(4));
  CHECK(there.restart_count == 2);
  CHECK(there.failures_outside_window == 1);
  REQUIRE(there.nodes.size() == 1);
  CHECK(there.nodes[0].host == "node7");
  CHECK(there.nodes[0].why == "took the place of node3");
  CHECK(there.nodes[0].heard_ago == absl::Seconds(3));
  CHECK(there.nodes[0].progress->step == 9);
  REQUIRE(there.nodes[0].ranks.size() == 1);
  CheckRank(there.nodes[0].ranks[0]);
  REQUIRE(there.last_failures.size() == 1);
  CHECK(there.last_failures[0].what == "rank 1 on node3: exit code 1");
  CHECK(there.last_failures[0].ago == absl::Minutes(2));
}

TEST_CASE("a job's stragglers, events and incidents cross the wire whole") {
  JobView view;
  view.stragglers = {{.kind = "rank",
                      .rank = 5,
                      .host = "node7",
                      .slower_by = 0.3,
                      .why = "130 ms a step, its like 100 ms",
                      .since = absl::Seconds(7)}};
  view.events = {{.number = 9,
                  .time = absl::FromUnixMicros(1700000000000001),
                  .kind = "epoch formed",
                  .text = "job job epoch 4 formed: 1 node",
                  .epoch = Epoch(4)}};
  view.incidents = {{.number = 2,
                     .epoch = Epoch(3),
                     .verdict = "code",
                     .cause = "rank 1 on node3: exit code 1",
                     .time = absl::FromUnixMicros(1700000000000002)}};
  pb::JobStatus wire;
  ToWire(view, &wire);
  const JobView there = FromWire(wire);
  REQUIRE(there.stragglers.size() == 1);
  CHECK(there.stragglers[0].kind == "rank");
  CHECK(there.stragglers[0].rank == 5);
  CHECK(there.stragglers[0].host == "node7");
  CHECK(there.stragglers[0].slower_by == 0.3);
  CHECK(there.stragglers[0].why == "130 ms a step, its like 100 ms");
  CHECK(there.stragglers[0].since == absl::Seconds(7));
  REQUIRE(there.events.size() == 1);
  CHECK(there.events[0].number == 9);
  CHECK(there.events[0].time == absl::FromUnixMicros(1700000000000001));
  CHECK(there.events[0].kind == "epoch formed");
  CHECK(there.events[0].text == "job job epoch 4 formed: 1 node");
  CHECK(there.events[0].epoch == Epoch(4));
  REQUIRE(there.incidents.size() == 1);
  CHECK(there.incidents[0].number == 2);
  CHECK(there.incidents[0].epoch == Epoch(3));
  CHECK(there.incidents[0].verdict == "code");
  CHECK(there.incidents[0].cause == "rank 1 on node3: exit code 1");
  CHECK(there.incidents[0].time == absl::FromUnixMicros(1700000000000002));
}

TEST_CASE("a failure keeps its first twenty log lines, each cut to 500 bytes") {
  WorkerFailure failure;
  failure.global_rank = 6;
  failure.signal = 9;
  failure.why = "killed by SIGKILL";
  failure.costs_budget = false;
  failure.is_final = true;
  failure.last_log_lines.assign(30, std::string(600, 'x'));
  failure.error_lines.assign(5, std::string(600, 'y'));
  failure.error_file = "/logs/\xff/error.json";
  Close close{Outcome::kFailed, "why", failure};
  const auto crossed = FromWire(ToWire(Incarnation(1), DaemonEvent{Epoch(2), close}));
  REQUIRE_OK(crossed);
  const Close& there = std::get<Close>(crossed->body);
  CHECK(there.outcome == Outcome::kFailed);
  REQUIRE(there.first_failure.has_value());
  CHECK(there.first_failure->global_rank == 6);
  CHECK(there.first_failure->signal == 9);
  CHECK_FALSE(there.first_failure->costs_budget);
  CHECK(there.first_failure->is_final);
  REQUIRE(there.first_failure->last_log_lines.size() == 20);
  CHECK(there.first_failure->last_log_lines[0].size() == 500);
  CHECK(there.first_failure->error_lines == std::vector<std::string>(4, std::string(500, 'y')));
  CHECK(there.first_failure->error_file == "/logs/\xff/error.json");
}

TEST_CASE("a long text is cut between two characters") {
  std::string why = "x";
  for (int i = 0; i < 300; ++i) why += "\u00e9";
  const pb::AgentMessage wire = ToWire(AgentEnvelope{Incarnation(1), Epoch(1), Leave{why}});
  CHECK(wire.leave().why() == why.substr(0, 499));
}

TEST_CASE("a message arrives whatever bytes workers, paths and other programs put into it") {
  const std::string bad = "/tmp/log\xff";
  Hello hello;
  hello.job_id = hello.host = "a";
  hello.log_directory = bad;
  WorkerFailure failure;
  failure.host = failure.why = bad;
  failure.last_log_lines = failure.error_lines = {bad};
  const Heartbeat heartbeat{WorkerProgress{1, 1, bad}};
  for (const decltype(AgentEnvelope::body)& body : {
           decltype(AgentEnvelope::body)(hello),
           decltype(AgentEnvelope::body)(AgentEvent(Ready{bad, 1})),
           decltype(AgentEnvelope::body)(AgentEvent(heartbeat)),
           decltype(AgentEnvelope::body)(AgentEvent(failure)),
           decltype(AgentEnvelope::body)(AgentEvent(Leave{bad})),
       }) {
    const pb::AgentMessage wire = ToWire(AgentEnvelope{Incarnation(1), Epoch(1), body});
    pb::AgentMessage there;
    INFO(wire.ShortDebugString());
    CHECK(there.ParseFromString(wire.SerializeAsString()));
    CHECK(there.ShortDebugString().find("/tmp/log?") != std::string::npos);
  }
}

TEST_CASE("no text of a failure, and no name beside a log line, steers a terminal") {
  const std::string steers = "\x1B[2J\na\tb";
  WorkerFailure failure;
  failure.host = failure.why = steers;
  failure.last_log_lines = failure.error_lines = failure.kernel_lines = {steers};
  const auto crossed = FromWire(
      ToWire(Incarnation(1), DaemonEvent{Epoch(2), Close{Outcome::kFailed, "why", failure}}));
  REQUIRE_OK(crossed);
  const WorkerFailure& there = *std::get<Close>(crossed->body).first_failure;
  for (const std::string& text : {there.host, there.why, there.last_log_lines[0],
                                  there.error_lines[0], there.kernel_lines[0]}) {
    CHECK(text == " a b");
  }
}

TEST_CASE("stop kinds and outcomes keep their meaning") {
  for (const StopKind kind : {StopKind::kAbort, StopKind::kCheckpoint}) {
    const auto crossed = FromWire(ToWire(Incarnation(1), DaemonEvent{Epoch(2), Stop{kind, "why"}}));
    REQUIRE_OK(crossed);
    CHECK(std::get<Stop>(crossed->body).kind == kind);
  }
  for (const Outcome outcome :
       {Outcome::kSucceeded, Outcome::kFailed, Outcome::kTimedOut, Outcome::kLeft}) {
    const auto crossed =
        FromWire(ToWire(Incarnation(1), DaemonEvent{Epoch(2), Close{outcome, "why", {}}}));
    REQUIRE_OK(crossed);
    CHECK(std::get<Close>(crossed->body).outcome == outcome);
  }
}

TEST_CASE("Heard, and what a place holder says, cross the wire") {
  const auto heard = FromWire(ToWire(Incarnation(1), DaemonEvent{Epoch(2), Heard{}}));
  REQUIRE_OK(heard);
  CHECK(heard->epoch == Epoch(2));
  CHECK(std::holds_alternative<Heard>(heard->body));
  Hello hello;
  hello.holds_place = true;
  hello.running_epoch = Epoch(4);
  const auto crossed = FromWire(ToWire(AgentEnvelope{Incarnation(1), Epoch(4), hello}));
  REQUIRE_OK(crossed);
  CHECK(std::get<Hello>(crossed->body).holds_place);
  CHECK(std::get<Hello>(crossed->body).running_epoch == Epoch(4));
}

TEST_CASE("a kind of a newer version is told apart from no body at all") {
  pb::AgentMessage said;
  said.GetReflection()->MutableUnknownFields(&said)->AddLengthDelimited(15);
  CHECK_STATUS(FromWire(said), absl::StatusCode::kUnimplemented, "messages of kind 15");
  pb::DaemonMessage heard;
  heard.GetReflection()->MutableUnknownFields(&heard)->AddLengthDelimited(16);
  CHECK_STATUS(FromWire(heard), absl::StatusCode::kUnimplemented, "messages of kind 16");
}

// Every kind of Message's body, read and written again.
template <typename Message, typename Cross>
void CheckEveryKind(const Cross& cross) {
  const google::protobuf::OneofDescriptor& body = *Message::descriptor()->oneof_decl(0);
  for (int i = 0; i < body.field_count(); ++i) {
    INFO(body.field(i)->full_name());
    Message message;
    message.GetReflection()->MutableMessage(&message, body.field(i));
    CHECK(cross(message).body_case() == body.field(i)->number());
  }
}

TEST_CASE("every kind of message that the protocol has is known in both directions") {
  CheckEveryKind<pb::AgentMessage>(
      [](const pb::AgentMessage& message) { return ToWire(*FromWire(message)); });
  CheckEveryKind<pb::DaemonMessage>(
      [](const pb::DaemonMessage& message) { return ToWire(Incarnation(1), *FromWire(message)); });
}

TEST_CASE("a Welcome tells the term of the daemon that leads; an older daemon has none") {
  Welcome welcome;
  welcome.term = 17;
  pb::DaemonMessage message = ToWire(Incarnation(1), DaemonEvent{Epoch(2), welcome});
  CHECK(std::get<Welcome>(FromWire(message)->body).term == 17);
  message.mutable_welcome()->clear_term();
  CHECK(std::get<Welcome>(FromWire(message)->body).term == 0);
}

TEST_CASE("an assignment tells the ranks in a role; to a daemon without roles there is one role") {
  Assignment assignment;
  assignment.first_global_rank = 6;
  assignment.world_size = 8;
  assignment.first_role_rank = 2;
  assignment.role_world_size = 4;
  const auto cross = [](const pb::DaemonMessage& message) {
    const auto crossed = FromWire(message);
    REQUIRE_OK(crossed);
    return std::get<Assignment>(crossed->body);
  };
  pb::DaemonMessage message = ToWire(Incarnation(1), DaemonEvent{Epoch(2), assignment});
  CHECK(cross(message).first_role_rank == 2);
  CHECK(cross(message).role_world_size == 4);
  message.mutable_assignment()->clear_first_role_rank();
  message.mutable_assignment()->clear_role_world_size();
  CHECK(cross(message).first_role_rank == 6);
  CHECK(cross(message).role_world_size == 8);
}

TEST_CASE("a node's addresses and a store's clients cross the wire; too many addresses are none") {
  Ready ready = {"a", 1000, {"10.0.0.1", std::string(100, 'f')}};
  const auto read = [&ready] {
    const auto envelope = FromWire(ToWire({Incarnation(1), Epoch(), AgentEvent(ready)}));
    REQUIRE_OK(envelope);
    return std::get<Ready>(std::get<AgentEvent>(envelope->body)).addresses;
  };
  CHECK(read() == std::vector<std::string>{"10.0.0.1", std::string(45, 'f')});
  ready.addresses.assign(kMostAddresses, "10.0.0.1");
  CHECK(read().size() == kMostAddresses);
  ready.addresses.push_back("10.0.0.2");
  CHECK(read().empty());
  Assignment assignment;
  assignment.store_clients = {"10.0.0.1", "fd00::1"};
  const auto event = FromWire(ToWire(Incarnation(1), {Epoch(1), assignment}));
  REQUIRE_OK(event);
  CHECK(std::get<Assignment>(event->body).store_clients == assignment.store_clients);
}

TEST_CASE("messages without a body and senseless ports are refused") {
  CHECK_STATUS(FromWire(pb::AgentMessage()), absl::StatusCode::kInvalidArgument, "without a body");
  CHECK_STATUS(FromWire(pb::DaemonMessage()), absl::StatusCode::kInvalidArgument, "without a body");
  pb::AgentMessage ready;
  ready.mutable_ready()->set_store_port(70000);
  CHECK_STATUS(FromWire(ready), absl::StatusCode::kInvalidArgument, "store port 70000");
}

}  // namespace
}  // namespace convene::rendezvous
