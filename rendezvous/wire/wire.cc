#include "rendezvous/wire/wire.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rendezvous/wire/fields.h"
#include "rendezvous/wire/log_wire.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr int kMostLogLines = 20;
constexpr int kMostErrorLines = 4;
constexpr size_t kLongestPath = 4096;

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

template <typename Value, typename Wire>
void CopyHello(Value& value, Wire& wire) {
  CONVENE_FIELD(job_id);
  CONVENE_FIELD(host);
  CONVENE_FIELD(node_rank);
  CONVENE_FIELD(local_world_size);
  CONVENE_FIELD_CUT(role);
  CONVENE_FIELD(nodes_min);
  CONVENE_FIELD(nodes_max);
  CONVENE_FIELD(nodes_expected);
  CONVENE_FIELD(max_restarts);
  CONVENE_FIELD_AS(join_timeout, join_timeout_ms);
  CONVENE_FIELD_AS(last_call, last_call_ms);
  CONVENE_FIELD(last_epoch);
  CONVENE_FIELD_AS(lease, lease_ms);
  CONVENE_FIELD(running_epoch);
  CONVENE_FIELD(holds_place);
  CONVENE_FIELD_CUT(topology);
  CONVENE_FIELD(spares);
  CONVENE_FIELD_AS(restart_window, restart_window_ms);
  CONVENE_FIELD(max_stuck_restarts);
  CONVENE_FIELD_AS(admission, admission_ms);
  CONVENE_FIELD_CUT(log_directory);
  CONVENE_FIELD(has_workers);
  CONVENE_FIELD_AS(stop_limit, stop_limit_ms);
}

template <typename Value, typename Wire>
void CopyFailure(Value& value, Wire& wire) {
  CONVENE_FIELD(global_rank);
  CONVENE_FIELD(local_rank);
  CONVENE_FIELD_CUT(host);
  CONVENE_FIELD(pid);
  CONVENE_FIELD(exit_code);
  CONVENE_FIELD(signal);
  CONVENE_FIELD_CUT(why);
  CONVENE_FIELD(costs_budget);
  CONVENE_FIELD(is_final);
}

template <typename Value, typename Wire>
void CopyProgress(Value& value, Wire& wire) {
  CONVENE_FIELD(step);
  CONVENE_FIELD(steps_per_second);
  CONVENE_FIELD_CUT(phase);
}

template <typename Value, typename Wire>
void CopyAssignment(Value& value, Wire& wire) {
  CONVENE_FIELD(group_rank);
  CONVENE_FIELD(group_world_size);
  CONVENE_FIELD(first_global_rank);
  CONVENE_FIELD(world_size);
  CONVENE_FIELD(first_role_rank);
  CONVENE_FIELD(role_world_size);
  CONVENE_FIELD(store_host);
  CONVENE_FIELD(store_port);
  CONVENE_FIELD(restart_count);
  CONVENE_FIELD(max_restarts);
  CONVENE_FIELD(why);
  CONVENE_FIELD(attempt);
}

template <typename Value, typename Wire>
void CopyNode(Value& value, Wire& wire) {
  CONVENE_FIELD(host);
  CONVENE_FIELD_AS(agent, agent_id);
  CONVENE_FIELD(node_rank);
  CONVENE_FIELD(local_world_size);
  CONVENE_FIELD(group_rank);
  CONVENE_FIELD(state);
  CONVENE_FIELD(why);
  CONVENE_FIELD_AS(heard_ago, heard_seconds_ago);
}

template <typename Value, typename Wire>
void CopyJob(Value& value, Wire& wire) {
  CONVENE_FIELD(job_id);
  CONVENE_FIELD(phase);
  CONVENE_FIELD(epoch);
  CONVENE_FIELD(why);
  CONVENE_FIELD(restart_count);
  CONVENE_FIELD(max_restarts);
  CONVENE_FIELD(nodes_min);
  CONVENE_FIELD(nodes_max);
}

template <typename Value, typename Wire>
void CopyPastFailure(Value& value, Wire& wire) {
  CONVENE_FIELD(epoch);
  CONVENE_FIELD_CUT(what);
  CONVENE_FIELD_AS(ago, seconds_ago);
}

WorkerProgress UnpackProgress(const pb::WorkerProgress& wire) {
  WorkerProgress progress;
  CopyProgress(progress, wire);
  return progress;
}

Heartbeat UnpackHeartbeat(const pb::Heartbeat& wire) {
  Heartbeat heartbeat;
  if (wire.has_progress()) heartbeat.progress = UnpackProgress(wire.progress());
  return heartbeat;
}

// The first `most` of `from`, each cut.
template <typename From, typename To>
void CopyLines(const From& from, int most, To to) {
  for (const std::string& line : from) {
    if (most-- == 0) return;
    *to++ = Cut(line);
  }
}

void PackEvent(const AgentEvent& event, pb::AgentMessage* wire) {
  if (const auto* ready = std::get_if<Ready>(&event)) {
    wire->mutable_ready()->set_store_host(Cut(ready->store_host));
    wire->mutable_ready()->set_store_port(ready->store_port);
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&event)) {
    pb::Heartbeat* packed = wire->mutable_heartbeat();
    if (heartbeat->progress.has_value()) {
      CopyProgress(*heartbeat->progress, *packed->mutable_progress());
    }
  } else if (const auto* failure = std::get_if<WorkerFailure>(&event)) {
    ToWire(*failure, wire->mutable_worker_failed()->mutable_failure());
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

}  // namespace

void ToWire(const Hello& hello, pb::Hello* wire) {
  CopyHello(hello, *wire);
  if (hello.publishes_logs) wire->add_capabilities(pb::CAPABILITY_LOGS);
  wire->set_said_at_ns(absl::ToInt64Nanoseconds(hello.said_at.since_epoch()));
}

Hello FromWire(const pb::Hello& wire) {
  Hello hello;
  CopyHello(hello, wire);
  if (hello.role.empty()) hello.role = Hello().role;  // older agents do not tell it
  hello.publishes_logs = Names(wire.capabilities(), pb::CAPABILITY_LOGS);
  hello.said_at = MonotonicTime::FromEpoch(absl::Nanoseconds(wire.said_at_ns()));
  return hello;
}

void ToWire(const WorkerFailure& failure, pb::WorkerFailure* wire) {
  CopyFailure(failure, *wire);
  CopyLines(failure.last_log_lines, kMostLogLines,
            RepeatedFieldBackInserter(wire->mutable_last_log_lines()));
  CopyLines(failure.error_lines, kMostErrorLines,
            RepeatedFieldBackInserter(wire->mutable_error_lines()));
  wire->set_error_file(failure.error_file.substr(0, kLongestPath));
}

WorkerFailure FromWire(const pb::WorkerFailure& wire) {
  WorkerFailure failure;
  CopyFailure(failure, wire);
  CopyLines(wire.last_log_lines(), kMostLogLines, std::back_inserter(failure.last_log_lines));
  CopyLines(wire.error_lines(), kMostErrorLines, std::back_inserter(failure.error_lines));
  failure.error_file = wire.error_file().substr(0, kLongestPath);
  return failure;
}

void ToWire(const Assignment& assignment, pb::Assignment* wire) {
  CopyAssignment(assignment, *wire);
}

Assignment FromWire(const pb::Assignment& wire) {
  Assignment assignment;
  CopyAssignment(assignment, wire);
  if (wire.role_world_size() == 0) {  // to a daemon that knows no roles all workers have the same
    assignment.first_role_rank = assignment.first_global_rank;
    assignment.role_world_size = assignment.world_size;
  }
  return assignment;
}

void ToWire(const Stop& stop, pb::Stop* wire) {
  wire->set_kind(stop.kind == StopKind::kAbort ? pb::Stop::KIND_ABORT : pb::Stop::KIND_CHECKPOINT);
  wire->set_why(stop.why);
}

Stop FromWire(const pb::Stop& wire) {
  const bool is_checkpoint = wire.kind() == pb::Stop::KIND_CHECKPOINT;
  return {is_checkpoint ? StopKind::kCheckpoint : StopKind::kAbort, wire.why()};
}

pb::Close::Outcome ToWire(Outcome outcome) {
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

Outcome FromWire(pb::Close::Outcome outcome) {
  if (outcome == pb::Close::OUTCOME_SUCCEEDED) return Outcome::kSucceeded;
  if (outcome == pb::Close::OUTCOME_TIMED_OUT) return Outcome::kTimedOut;
  if (outcome == pb::Close::OUTCOME_LEFT) return Outcome::kLeft;
  return Outcome::kFailed;
}

pb::AgentMessage ToWire(const AgentEnvelope& envelope) {
  pb::AgentMessage message;
  message.set_incarnation(envelope.incarnation.value());
  message.set_epoch(envelope.epoch.value());
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    ToWire(*hello, message.mutable_hello());
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
      envelope.body = FromWire(message.hello());
      return envelope;
    case pb::AgentMessage::kReady: {
      CONVENE_ASSIGN_OR_RETURN(envelope.body, UnpackReady(message.ready()));
      return envelope;
    }
    case pb::AgentMessage::kHeartbeat:
      envelope.body = AgentEvent(UnpackHeartbeat(message.heartbeat()));
      return envelope;
    case pb::AgentMessage::kWorkerFailed:
      envelope.body = AgentEvent(FromWire(message.worker_failed().failure()));
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
    message.mutable_welcome()->set_lease_ms(absl::ToInt64Milliseconds(welcome->lease));
    message.mutable_welcome()->set_heartbeat_interval_ms(
        absl::ToInt64Milliseconds(welcome->heartbeat_interval));
    message.mutable_welcome()->set_resumed(welcome->resumed);
    message.mutable_welcome()->set_survives_restart(welcome->survives_restart);
    if (welcome->awaits_old_workers) {
      message.mutable_welcome()->add_capabilities(pb::CAPABILITY_OLD_WORKERS);
    }
  } else if (const auto* assignment = std::get_if<Assignment>(&event.body)) {
    ToWire(*assignment, message.mutable_assignment());
  } else if (const auto* stop = std::get_if<Stop>(&event.body)) {
    ToWire(*stop, message.mutable_stop());
  } else if (const auto* close = std::get_if<Close>(&event.body)) {
    message.mutable_close()->set_outcome(ToWire(close->outcome));
    message.mutable_close()->set_why(close->why);
    if (close->first_failure.has_value()) {
      ToWire(*close->first_failure, message.mutable_close()->mutable_first_failure());
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
      event.body = FromWire(message.assignment());
      return event;
    case pb::DaemonMessage::kStop:
      event.body = FromWire(message.stop());
      return event;
    case pb::DaemonMessage::kClose: {
      Close close{FromWire(message.close().outcome()), message.close().why(), std::nullopt};
      if (message.close().has_first_failure()) {
        close.first_failure = FromWire(message.close().first_failure());
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
  CopyJob(view, *status);
  for (const NodeView& node : view.nodes) {
    pb::NodeStatus* const wire = status->add_nodes();
    CopyNode(node, *wire);
    if (node.progress.has_value()) CopyProgress(*node.progress, *wire->mutable_progress());
  }
  for (const FailureView& failure : view.last_failures) {
    CopyPastFailure(failure, *status->add_last_failures());
  }
}

JobView FromWire(const pb::JobStatus& status) {
  JobView view;
  CopyJob(view, status);
  for (const pb::NodeStatus& wire : status.nodes()) {
    NodeView& node = view.nodes.emplace_back();
    CopyNode(node, wire);
    if (wire.has_progress()) node.progress = UnpackProgress(wire.progress());
  }
  for (const pb::FailureRecord& failure : status.last_failures()) {
    CopyPastFailure(view.last_failures.emplace_back(), failure);
  }
  return view;
}

}  // namespace convene::rendezvous
