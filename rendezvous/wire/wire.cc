#include "rendezvous/wire/wire.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/wire/log_wire.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr int kMostLogLines = 20;
constexpr int kMostErrorLines = 4;
constexpr size_t kLongestText = 500;
constexpr size_t kLongestPath = 4096;

// Cuts text from workers, paths and other programs.
std::string Cut(absl::string_view text) { return Utf8(text, kLongestText); }

int64_t Ms(absl::Duration duration) { return absl::ToInt64Milliseconds(duration); }

bool Names(const google::protobuf::RepeatedField<int>& capabilities, pb::Capability wanted) {
  return std::find(capabilities.begin(), capabilities.end(), wanted) != capabilities.end();
}

// The error for a message whose body is of no kind that `reader` knows.
absl::Status UnknownKind(const google::protobuf::Message& message, absl::string_view reader) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ", reader,
                     " got a message without a body: its sender breaks the "
                     "protocol of proto/rendezvous.proto"));
  }
  return absl::UnimplementedError(absl::StrCat("the ", reader, " does not know messages of kind ",
                                               unknown.field(0).number(),
                                               " and ignores them: the "
                                               "other side is of a newer version"));
}

void PackHello(const Hello& hello, pb::Hello* wire) {
  wire->set_job_id(hello.job_id);
  wire->set_host(hello.host);
  wire->set_node_rank(hello.node_rank);
  wire->set_local_world_size(hello.local_world_size);
  wire->set_role(hello.role);
  wire->set_nodes_min(hello.nodes_min);
  wire->set_nodes_max(hello.nodes_max);
  wire->set_nodes_expected(hello.nodes_expected);
  wire->set_max_restarts(hello.max_restarts);
  wire->set_join_timeout_ms(Ms(hello.join_timeout));
  wire->set_last_call_ms(Ms(hello.last_call));
  wire->set_last_epoch(hello.last_epoch.value());
  wire->set_lease_ms(Ms(hello.lease));
  wire->set_running_epoch(hello.running_epoch.value());
  wire->set_holds_place(hello.holds_place);
  wire->set_topology(hello.topology);
  wire->set_spares(hello.spares);
  wire->set_restart_window_ms(Ms(hello.restart_window));
  wire->set_max_stuck_restarts(hello.max_stuck_restarts);
  wire->set_admission_ms(Ms(hello.admission));
  if (hello.publishes_logs) wire->add_capabilities(pb::CAPABILITY_LOGS);
  wire->set_log_directory(Cut(hello.log_directory));
  wire->set_said_at_ns(absl::ToInt64Nanoseconds(hello.said_at.since_epoch()));
  wire->set_has_workers(hello.has_workers);
  wire->set_stop_limit_ms(Ms(hello.stop_limit));
}

Hello UnpackHello(const pb::Hello& wire) {
  Hello hello;
  hello.job_id = wire.job_id();
  hello.host = wire.host();
  hello.node_rank = wire.node_rank();
  hello.local_world_size = wire.local_world_size();
  // Older agents do not tell it.
  if (!wire.role().empty()) hello.role = Cut(wire.role());
  hello.nodes_min = wire.nodes_min();
  hello.nodes_max = wire.nodes_max();
  hello.nodes_expected = wire.nodes_expected();
  hello.max_restarts = wire.max_restarts();
  hello.join_timeout = absl::Milliseconds(wire.join_timeout_ms());
  hello.last_call = absl::Milliseconds(wire.last_call_ms());
  hello.last_epoch = Epoch(wire.last_epoch());
  hello.lease = absl::Milliseconds(wire.lease_ms());
  hello.running_epoch = Epoch(wire.running_epoch());
  hello.holds_place = wire.holds_place();
  hello.topology = Cut(wire.topology());
  hello.spares = wire.spares();
  hello.restart_window = absl::Milliseconds(wire.restart_window_ms());
  hello.max_stuck_restarts = wire.max_stuck_restarts();
  hello.admission = absl::Milliseconds(wire.admission_ms());
  hello.publishes_logs = Names(wire.capabilities(), pb::CAPABILITY_LOGS);
  hello.log_directory = Cut(wire.log_directory());
  hello.said_at = MonotonicTime::FromEpoch(absl::Nanoseconds(wire.said_at_ns()));
  hello.has_workers = wire.has_workers();
  hello.stop_limit = absl::Milliseconds(wire.stop_limit_ms());
  return hello;
}

void PackFailure(const WorkerFailure& failure, pb::WorkerFailure* wire) {
  wire->set_global_rank(failure.global_rank);
  wire->set_local_rank(failure.local_rank);
  wire->set_host(Cut(failure.host));
  wire->set_pid(failure.pid);
  wire->set_exit_code(failure.exit_code);
  wire->set_signal(failure.signal);
  wire->set_why(Cut(failure.why));
  for (const std::string& line : failure.last_log_lines) {
    if (wire->last_log_lines_size() == kMostLogLines) break;
    wire->add_last_log_lines(Cut(line));
  }
  for (const std::string& line : failure.error_lines) {
    if (wire->error_lines_size() == kMostErrorLines) break;
    wire->add_error_lines(Cut(line));
  }
  wire->set_error_file(failure.error_file.substr(0, kLongestPath));
  wire->set_costs_budget(failure.costs_budget);
  wire->set_is_final(failure.is_final);
}

WorkerFailure UnpackFailure(const pb::WorkerFailure& wire) {
  WorkerFailure failure;
  failure.global_rank = wire.global_rank();
  failure.local_rank = wire.local_rank();
  failure.host = Cut(wire.host());
  failure.pid = wire.pid();
  failure.exit_code = wire.exit_code();
  failure.signal = wire.signal();
  failure.why = Cut(wire.why());
  const int lines = std::min(wire.last_log_lines_size(), kMostLogLines);
  for (int i = 0; i < lines; ++i) failure.last_log_lines.push_back(Cut(wire.last_log_lines(i)));
  const int error_lines = std::min(wire.error_lines_size(), kMostErrorLines);
  for (int i = 0; i < error_lines; ++i) failure.error_lines.push_back(Cut(wire.error_lines(i)));
  failure.error_file = wire.error_file().substr(0, kLongestPath);
  failure.costs_budget = wire.costs_budget();
  failure.is_final = wire.is_final();
  return failure;
}

void PackProgress(const WorkerProgress& progress, pb::WorkerProgress* wire) {
  wire->set_step(progress.step);
  wire->set_steps_per_second(progress.steps_per_second);
  wire->set_phase(Cut(progress.phase));
}

WorkerProgress UnpackProgress(const pb::WorkerProgress& wire) {
  return {wire.step(), wire.steps_per_second(), Cut(wire.phase())};
}

Heartbeat UnpackHeartbeat(const pb::Heartbeat& wire) {
  Heartbeat heartbeat;
  if (wire.has_progress()) heartbeat.progress = UnpackProgress(wire.progress());
  return heartbeat;
}

void PackEvent(const AgentEvent& event, pb::AgentMessage* wire) {
  if (const auto* ready = std::get_if<Ready>(&event)) {
    wire->mutable_ready()->set_store_host(Cut(ready->store_host));
    wire->mutable_ready()->set_store_port(ready->store_port);
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&event)) {
    pb::Heartbeat* packed = wire->mutable_heartbeat();
    if (heartbeat->progress.has_value()) {
      PackProgress(*heartbeat->progress, packed->mutable_progress());
    }
  } else if (const auto* failure = std::get_if<WorkerFailure>(&event)) {
    PackFailure(*failure, wire->mutable_worker_failed()->mutable_failure());
  } else if (std::holds_alternative<WorkersSucceeded>(event)) {
    wire->mutable_workers_succeeded();
  } else if (const auto* leave = std::get_if<Leave>(&event)) {
    wire->mutable_leave()->set_why(Cut(leave->why));
    wire->mutable_leave()->set_is_unfit(leave->is_unfit);
    wire->mutable_leave()->set_has_workers(leave->has_workers);
  }
}

absl::StatusOr<AgentEvent> UnpackReady(const pb::Ready& wire) {
  if (wire.store_port() < 0 || wire.store_port() > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("Ready names store port ", wire.store_port(), "; it must be from 0 to 65535"));
  }
  return AgentEvent(Ready{Cut(wire.store_host()), wire.store_port()});
}

void PackAssignment(const Assignment& assignment, pb::Assignment* wire) {
  wire->set_group_rank(assignment.group_rank);
  wire->set_group_world_size(assignment.group_world_size);
  wire->set_first_global_rank(assignment.first_global_rank);
  wire->set_world_size(assignment.world_size);
  wire->set_first_role_rank(assignment.first_role_rank);
  wire->set_role_world_size(assignment.role_world_size);
  wire->set_store_host(assignment.store_host);
  wire->set_store_port(assignment.store_port);
  wire->set_restart_count(assignment.restart_count);
  wire->set_max_restarts(assignment.max_restarts);
  wire->set_why(assignment.why);
  wire->set_attempt(assignment.attempt);
}

Assignment UnpackAssignment(const pb::Assignment& wire) {
  Assignment assignment;
  assignment.group_rank = wire.group_rank();
  assignment.group_world_size = wire.group_world_size();
  assignment.first_global_rank = wire.first_global_rank();
  assignment.world_size = wire.world_size();
  // For a daemon that knows no roles all workers have the same role.
  const bool knows_roles = wire.role_world_size() > 0;
  assignment.first_role_rank = knows_roles ? wire.first_role_rank() : assignment.first_global_rank;
  assignment.role_world_size = knows_roles ? wire.role_world_size() : assignment.world_size;
  assignment.store_host = wire.store_host();
  assignment.store_port = wire.store_port();
  assignment.restart_count = wire.restart_count();
  assignment.max_restarts = wire.max_restarts();
  assignment.why = wire.why();
  assignment.attempt = wire.attempt();
  return assignment;
}

pb::Close::Outcome PackOutcome(Outcome outcome) {
  switch (outcome) {
    case Outcome::kSucceeded:
      return pb::Close::OUTCOME_SUCCEEDED;
    case Outcome::kFailed:
      return pb::Close::OUTCOME_FAILED;
    case Outcome::kTimedOut:
      return pb::Close::OUTCOME_TIMED_OUT;
    case Outcome::kLeft:
      return pb::Close::OUTCOME_LEFT;
  }
  return pb::Close::OUTCOME_UNSPECIFIED;
}

// An unknown outcome, of a newer daemon, is no success.
Outcome UnpackOutcome(pb::Close::Outcome outcome) {
  if (outcome == pb::Close::OUTCOME_SUCCEEDED) return Outcome::kSucceeded;
  if (outcome == pb::Close::OUTCOME_TIMED_OUT) return Outcome::kTimedOut;
  if (outcome == pb::Close::OUTCOME_LEFT) return Outcome::kLeft;
  return Outcome::kFailed;
}

}  // namespace

pb::AgentMessage ToWire(const AgentEnvelope& envelope) {
  pb::AgentMessage message;
  message.set_incarnation(envelope.incarnation.value());
  message.set_epoch(envelope.epoch.value());
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    PackHello(*hello, message.mutable_hello());
  } else {
    PackEvent(std::get<AgentEvent>(envelope.body), &message);
  }
  return message;
}

absl::StatusOr<AgentEnvelope> FromWire(const pb::AgentMessage& message) {
  AgentEnvelope envelope;
  envelope.incarnation = Incarnation(message.incarnation());
  envelope.epoch = Epoch(message.epoch());
  switch (message.body_case()) {
    case pb::AgentMessage::kHello:
      envelope.body = UnpackHello(message.hello());
      return envelope;
    case pb::AgentMessage::kReady: {
      CONVENE_ASSIGN_OR_RETURN(envelope.body, UnpackReady(message.ready()));
      return envelope;
    }
    case pb::AgentMessage::kHeartbeat:
      envelope.body = AgentEvent(UnpackHeartbeat(message.heartbeat()));
      return envelope;
    case pb::AgentMessage::kWorkerFailed:
      envelope.body = AgentEvent(UnpackFailure(message.worker_failed().failure()));
      return envelope;
    case pb::AgentMessage::kWorkersSucceeded:
      envelope.body = AgentEvent(WorkersSucceeded());
      return envelope;
    case pb::AgentMessage::kLeave:
      envelope.body = AgentEvent(Leave{Cut(message.leave().why()), message.leave().is_unfit(),
                                       message.leave().has_workers()});
      return envelope;
    case pb::AgentMessage::BODY_NOT_SET:
      break;
  }
  return UnknownKind(message, "daemon");
}

pb::DaemonMessage ToWire(Incarnation daemon, const DaemonEvent& event) {
  pb::DaemonMessage message;
  message.set_incarnation(daemon.value());
  message.set_epoch(event.epoch.value());
  if (const auto* welcome = std::get_if<Welcome>(&event.body)) {
    message.mutable_welcome()->set_lease_ms(Ms(welcome->lease));
    message.mutable_welcome()->set_heartbeat_interval_ms(Ms(welcome->heartbeat_interval));
    message.mutable_welcome()->set_resumed(welcome->resumed);
    message.mutable_welcome()->set_survives_restart(welcome->survives_restart);
    if (welcome->awaits_old_workers) {
      message.mutable_welcome()->add_capabilities(pb::CAPABILITY_OLD_WORKERS);
    }
  } else if (const auto* assignment = std::get_if<Assignment>(&event.body)) {
    PackAssignment(*assignment, message.mutable_assignment());
  } else if (const auto* stop = std::get_if<Stop>(&event.body)) {
    message.mutable_stop()->set_kind(stop->kind == StopKind::kAbort ? pb::Stop::KIND_ABORT
                                                                    : pb::Stop::KIND_CHECKPOINT);
    message.mutable_stop()->set_why(stop->why);
  } else if (const auto* close = std::get_if<Close>(&event.body)) {
    message.mutable_close()->set_outcome(PackOutcome(close->outcome));
    message.mutable_close()->set_why(close->why);
    if (close->first_failure.has_value()) {
      PackFailure(*close->first_failure, message.mutable_close()->mutable_first_failure());
    }
  } else if (const auto* wanted = std::get_if<LogsWanted>(&event.body)) {
    ToWire(*wanted, message.mutable_logs_wanted());
  } else {
    message.mutable_heard();
  }
  return message;
}

absl::StatusOr<DaemonEvent> FromWire(const pb::DaemonMessage& message) {
  DaemonEvent event;
  event.epoch = Epoch(message.epoch());
  switch (message.body_case()) {
    case pb::DaemonMessage::kWelcome:
      event.body = Welcome{absl::Milliseconds(message.welcome().lease_ms()),
                           absl::Milliseconds(message.welcome().heartbeat_interval_ms()),
                           message.welcome().resumed(), message.welcome().survives_restart(),
                           Names(message.welcome().capabilities(), pb::CAPABILITY_OLD_WORKERS)};
      return event;
    case pb::DaemonMessage::kAssignment:
      event.body = UnpackAssignment(message.assignment());
      return event;
    case pb::DaemonMessage::kStop:
      event.body = Stop{message.stop().kind() == pb::Stop::KIND_CHECKPOINT ? StopKind::kCheckpoint
                                                                           : StopKind::kAbort,
                        message.stop().why()};
      return event;
    case pb::DaemonMessage::kClose: {
      Close close{UnpackOutcome(message.close().outcome()), message.close().why(), std::nullopt};
      if (message.close().has_first_failure()) {
        close.first_failure = UnpackFailure(message.close().first_failure());
      }
      event.body = std::move(close);
      return event;
    }
    case pb::DaemonMessage::kHeard:
      event.body = Heard{};
      return event;
    case pb::DaemonMessage::kLogsWanted:
      event.body = FromWire(message.logs_wanted());
      return event;
    case pb::DaemonMessage::BODY_NOT_SET:
      break;
  }
  return UnknownKind(message, "agent");
}

void ToWire(const JobView& view, pb::JobStatus* status) {
  status->set_job_id(view.job_id);
  status->set_phase(view.phase);
  status->set_epoch(view.epoch.value());
  status->set_why(view.why);
  status->set_restart_count(view.restart_count);
  status->set_max_restarts(view.max_restarts);
  status->set_nodes_min(view.nodes_min);
  status->set_nodes_max(view.nodes_max);
  for (const NodeView& node : view.nodes) {
    pb::NodeStatus* wire = status->add_nodes();
    wire->set_host(node.host);
    wire->set_agent_id(node.agent.value());
    wire->set_node_rank(node.node_rank);
    wire->set_local_world_size(node.local_world_size);
    wire->set_group_rank(node.group_rank);
    wire->set_state(node.state);
    wire->set_why(node.why);
    wire->set_heard_seconds_ago(absl::ToDoubleSeconds(node.heard_ago));
    if (node.progress.has_value()) PackProgress(*node.progress, wire->mutable_progress());
  }
  for (const FailureView& failure : view.last_failures) {
    pb::FailureRecord* wire = status->add_last_failures();
    wire->set_epoch(failure.epoch.value());
    wire->set_what(Cut(failure.what));
    wire->set_seconds_ago(absl::ToDoubleSeconds(failure.ago));
  }
}

namespace {

NodeView UnpackNode(const pb::NodeStatus& wire) {
  NodeView node;
  node.host = wire.host();
  node.agent = AgentId(wire.agent_id());
  node.node_rank = wire.node_rank();
  node.local_world_size = wire.local_world_size();
  node.group_rank = wire.group_rank();
  node.state = wire.state();
  node.why = wire.why();
  node.heard_ago = absl::Seconds(wire.heard_seconds_ago());
  if (wire.has_progress()) node.progress = UnpackProgress(wire.progress());
  return node;
}

}  // namespace

JobView FromWire(const pb::JobStatus& status) {
  JobView view;
  view.job_id = status.job_id();
  view.phase = status.phase();
  view.epoch = Epoch(status.epoch());
  view.why = status.why();
  view.restart_count = status.restart_count();
  view.max_restarts = status.max_restarts();
  view.nodes_min = status.nodes_min();
  view.nodes_max = status.nodes_max();
  for (const pb::NodeStatus& node : status.nodes()) {
    view.nodes.push_back(UnpackNode(node));
  }
  for (const pb::FailureRecord& failure : status.last_failures()) {
    view.last_failures.push_back(
        {Epoch(failure.epoch()), failure.what(), absl::Seconds(failure.seconds_ago())});
  }
  return view;
}

}  // namespace convene::rendezvous
