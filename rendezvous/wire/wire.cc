#include "rendezvous/wire/wire.h"

#include "absl/strings/str_cat.h"
#include "rendezvous/wire/message_fields.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

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

absl::Status CheckPort(int port) {
  if (port >= 0 && port <= 65535) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Ready names store port ", port, "; it must be from 0 to 65535"));
}

absl::Status CheckLength(int length, const char* what) {
  if (length <= kMostFilterEntries) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a request for logs names ", length, " ", what,
                                                 "; at most ", kMostFilterEntries,
                                                 " can be named: leave them out for all"));
}

std::string CutAwaits(absl::string_view text) { return Utf8(Cut(text), 80); }

void CopyFields(Is<Ready> auto& value, auto& wire) {
  CONVENE_FIELD_CLEAN(Cut, store_host);
  CONVENE_FIELD(store_port);
  CONVENE_FIELD_EACH(CutAddress, addresses, kMostAddresses + 1);
  if constexpr (!kIsWritten<decltype(value)>) {
    // The first ones alone would shut the others out.
    if (value.addresses.size() > kMostAddresses) value.addresses.clear();
  }
}

void CopyFields(Is<WorkerProgress> auto& value, auto& wire) {
  CONVENE_FIELD(step);
  CONVENE_FIELD(steps_per_second);
  CONVENE_FIELD_CLEAN(Cut, phase);
}

void CopyFields(Is<RankProgress> auto& value, auto& wire) {
  CONVENE_FIELD(local_rank);
  CONVENE_FIELD(step);
  CONVENE_FIELD(steps_per_second);
  CONVENE_FIELD_CLEAN(Cut, phase);
  CONVENE_FIELD(compute_ms);
  CONVENE_FIELD(wait_ms);
  CONVENE_FIELD(data_ms);
  CONVENE_FIELD(checkpoint_ms);
  CONVENE_FIELD(loss);
  CONVENE_FIELD(tokens_per_second);
  CONVENE_FIELD(memory_bytes);
  CONVENE_FIELD(memory_peak_bytes);
  CONVENE_FIELD(place);
  CONVENE_FIELD(steps);
  CONVENE_FIELD(mfu);
  CONVENE_FIELD_CLEAN(CutAwaits, awaits);
}

void CopyFields(Is<Heartbeat> auto& value, auto& wire) {
  CONVENE_OPTIONAL_MESSAGE(progress);
  CONVENE_FIRST_MESSAGES(ranks, kMostRanksTold);
}

void CopyFields(const WorkerFailure& value, pb::WorkerFailed& wire) {
  CopyFields(value, *wire.mutable_failure());
}

void CopyFields(WorkerFailure& value, const pb::WorkerFailed& wire) {
  CopyFields(value, wire.failure());
}

void CopyFields(Is<Leave> auto& value, auto& wire) {
  CONVENE_FIELD_CLEAN(Cut, why);
  CONVENE_FIELD(is_unfit);
  CONVENE_FIELD(has_workers);
}

void CopyFields(Is<AgentEvent> auto& value, auto& wire) {
  CONVENE_KIND(Ready, ready);
  CONVENE_KIND(Heartbeat, heartbeat);
  CONVENE_KIND(WorkerFailure, worker_failed);
  CONVENE_KIND(WorkersSucceeded, workers_succeeded);
  CONVENE_KIND(Leave, leave);
}

void CopyFields(Is<Welcome> auto& value, auto& wire) {
  CONVENE_FIELD_AS(lease, lease_ms);
  CONVENE_FIELD_AS(heartbeat_interval, heartbeat_interval_ms);
  CONVENE_FIELD(resumed);
  CONVENE_FIELD(survives_restart);
  CONVENE_FIELD(term);
  CONVENE_CAPABILITY(awaits_old_workers, pb::CAPABILITY_OLD_WORKERS);
}

void CopyFields(Is<Close> auto& value, auto& wire) {
  CONVENE_FIELD_ENUM(outcome, kOutcomes);
  CONVENE_FIELD(why);
  CONVENE_OPTIONAL_MESSAGE(first_failure);
}

void CopyFields(Is<LogFilter> auto& value, auto& wire) {
  CONVENE_FIELD_EACH(int, ranks, kAll);
  CONVENE_FIELD_EACH(int, local_ranks, kAll);
  CONVENE_FIELD(without_stdout);
  CONVENE_FIELD(without_stderr);
}

void CopyFields(Is<LogsWanted> auto& value, auto& wire) {
  CONVENE_FIELD(watch_id);
  CONVENE_MESSAGE(filter);
  CONVENE_FIELD(tail);
  CONVENE_FIELD(follow);
  CONVENE_FIELD(next_line);
}

void CopyFields(Is<HandOver> auto& value, auto& wire) { CONVENE_FIELD(state); }

void CopyFields(Is<decltype(DaemonEvent::body)> auto& value, auto& wire) {
  CONVENE_KIND(Welcome, welcome);
  CONVENE_KIND(Assignment, assignment);
  CONVENE_KIND(Stop, stop);
  CONVENE_KIND(Close, close);
  CONVENE_KIND(Heard, heard);
  CONVENE_KIND(LogsWanted, logs_wanted);
  CONVENE_KIND(HandOver, hand_over);
}

void CopyFields(Is<NodeView> auto& value, auto& wire) {
  CONVENE_FIELD(host);
  CONVENE_FIELD_AS(agent, agent_id);
  CONVENE_FIELD(node_rank);
  CONVENE_FIELD(local_world_size);
  CONVENE_FIELD(group_rank);
  CONVENE_FIELD(state);
  CONVENE_FIELD(why);
  CONVENE_FIELD_AS(heard_ago, heard_seconds_ago);
  CONVENE_OPTIONAL_MESSAGE(progress);
  CONVENE_MESSAGES(ranks);
}

void CopyFields(Is<FailureView> auto& value, auto& wire) {
  CONVENE_FIELD(epoch);
  CONVENE_FIELD_CLEAN(Cut, what);
  CONVENE_FIELD_AS(ago, seconds_ago);
}

void CopyFields(Is<StragglerView> auto& value, auto& wire) {
  CONVENE_FIELD(kind);
  CONVENE_FIELD(rank);
  CONVENE_FIELD(host);
  CONVENE_FIELD(slower_by);
  CONVENE_FIELD_CLEAN(Cut, why);
  CONVENE_FIELD_AS(since, since_seconds);
}

void CopyFields(Is<EventView> auto& value, auto& wire) {
  CONVENE_FIELD(number);
  CONVENE_FIELD_AS(time, time_us);
  CONVENE_FIELD(kind);
  CONVENE_FIELD_CLEAN(Cut, text);
  CONVENE_FIELD(epoch);
}

void CopyFields(Is<IncidentView> auto& value, auto& wire) {
  CONVENE_FIELD(number);
  CONVENE_FIELD(epoch);
  CONVENE_FIELD(verdict);
  CONVENE_FIELD_CLEAN(Cut, cause);
  CONVENE_FIELD_AS(time, time_us);
  CONVENE_FIELD(certainty);
  CONVENE_FIELD_EACH(Cut, evidence, kAll);
  CONVENE_FIELD(host);
  CONVENE_MESSAGES(failures);
  CONVENE_FIELD_EACH(Cut, places, kAll);
  CONVENE_FIELD_CLEAN(Cut, outcome);
  CONVENE_FIELD(times_here);
}

void CopyFields(Is<JobView> auto& value, auto& wire) {
  CONVENE_FIELD(job_id);
  CONVENE_FIELD(phase);
  CONVENE_FIELD(epoch);
  CONVENE_FIELD(why);
  CONVENE_FIELD(restart_count);
  CONVENE_FIELD(failures_outside_window);
  CONVENE_FIELD(max_restarts);
  CONVENE_FIELD(nodes_min);
  CONVENE_FIELD(nodes_max);
  CONVENE_MESSAGES(nodes);
  CONVENE_MESSAGES(last_failures);
  CONVENE_MESSAGES(stragglers);
  CONVENE_MESSAGES(events);
  CONVENE_MESSAGES(incidents);
}

void CopyFields(Is<LogMark> auto& value, auto& wire) {
  CONVENE_FIELD_AS(agent, agent_id);
  CONVENE_FIELD(next_line);
}

void CopyFields(Is<LogRequest> auto& value, auto& wire) {
  CONVENE_FIELD_CLEAN(Printable, job_id);
  CONVENE_FIELD_EACH(Printable, hosts, kAll);
  CONVENE_MESSAGE(filter);
  CONVENE_FIELD(tail);
  CONVENE_FIELD(follow);
  CONVENE_MESSAGES(seen);
}

void CopyFields(Is<LogNode> auto& value, auto& wire) {
  CONVENE_FIELD_AS(agent, agent_id);
  CONVENE_FIELD(host);
  CONVENE_FIELD(publishes_logs);
}

void CopyFields(Is<LogStart> auto& value, auto& wire) { CONVENE_MESSAGES(nodes); }

void CopyFields(Is<LogLine> auto& value, auto& wire) {
  CONVENE_FIELD_AS(time, time_us);
  CONVENE_FIELD(rank);
  CONVENE_FIELD(local_rank);
  CONVENE_FIELD(is_stderr);
  CONVENE_FIELD(text);
  CONVENE_FIELD(is_cut);
}

void CopyFields(Is<LogBatch> auto& value, auto& wire) {
  CONVENE_FIELD(watch_id);
  CONVENE_FIELD_AS(agent, agent_id);
  CONVENE_FIELD_CLEAN(Printable, host);
  CONVENE_FIELD_CLEAN(Printable, role);
  CONVENE_MESSAGES(lines);
  CONVENE_FIELD(lost_lines);
  CONVENE_FIELD(next_line);
  CONVENE_FIELD(caught_up);
  CONVENE_FIELD(is_last);
}

void CopyFields(Is<LogsGone> auto& value, auto& wire) { CONVENE_FIELD_AS(agent, agent_id); }

void CopyFields(Is<RunEnded> auto& value, auto& wire) {
  CONVENE_FIELD(phase);
  CONVENE_FIELD(why);
}

void CopyFields(Is<LogNews> auto& value, auto& wire) {
  CONVENE_KIND(LogStart, start);
  CONVENE_KIND(LogBatch, batch);
  CONVENE_KIND(LogsGone, gone);
  CONVENE_KIND(RunEnded, ended);
}

}  // namespace

pb::AgentMessage ToWire(const AgentEnvelope& envelope) {
  pb::AgentMessage message;
  message.set_incarnation(envelope.incarnation.value());
  message.set_epoch(envelope.epoch.value());
  if (const auto* hello = std::get_if<Hello>(&envelope.body)) {
    CopyFields(*hello, *message.mutable_hello());
  } else {
    CopyFields(std::get<AgentEvent>(envelope.body), message);
  }
  return message;
}

absl::StatusOr<AgentEnvelope> FromWire(const pb::AgentMessage& message) {
  if (message.body_case() == pb::AgentMessage::BODY_NOT_SET) return UnknownKind(message, "daemon");
  CONVENE_RETURN_IF_ERROR(CheckPort(message.ready().store_port()));
  AgentEnvelope envelope{Incarnation(message.incarnation()), Epoch(message.epoch()), {}};
  if (message.has_hello()) {
    CopyFields(envelope.body.emplace<Hello>(), message.hello());
  } else {
    CopyFields(envelope.body.emplace<AgentEvent>(), message);
  }
  return envelope;
}

pb::DaemonMessage ToWire(Incarnation daemon, const DaemonEvent& event) {
  pb::DaemonMessage message;
  message.set_incarnation(daemon.value());
  message.set_epoch(event.epoch.value());
  CopyFields(event.body, message);
  return message;
}

absl::StatusOr<DaemonEvent> FromWire(const pb::DaemonMessage& message) {
  if (message.body_case() == pb::DaemonMessage::BODY_NOT_SET) return UnknownKind(message, "agent");
  DaemonEvent event{Epoch(message.epoch()), {}};
  CopyFields(event.body, message);
  return event;
}

void ToWire(const JobView& view, pb::JobStatus* status) { CopyFields(view, *status); }

JobView FromWire(const pb::JobStatus& status) {
  JobView view;
  CopyFields(view, status);
  return view;
}

pb::WatchLogsRequest ToWire(const LogRequest& request) {
  pb::WatchLogsRequest wire;
  CopyFields(request, wire);
  return wire;
}

absl::StatusOr<LogRequest> FromWire(const pb::WatchLogsRequest& wire) {
  CONVENE_RETURN_IF_ERROR(CheckLength(wire.hosts_size(), "nodes"));
  CONVENE_RETURN_IF_ERROR(CheckLength(wire.filter().ranks_size(), "ranks"));
  CONVENE_RETURN_IF_ERROR(CheckLength(wire.filter().local_ranks_size(), "local ranks"));
  LogRequest request;
  CopyFields(request, wire);
  return request;
}

pb::LogBatch ToWire(const LogBatch& batch) {
  pb::LogBatch wire;
  CopyFields(batch, wire);
  return wire;
}

pb::LogNews ToWire(const LogNews& news) {
  pb::LogNews wire;
  CopyFields(news, wire);
  return wire;
}

absl::StatusOr<LogNews> FromWire(const pb::LogNews& wire) {
  if (wire.body_case() == pb::LogNews::BODY_NOT_SET) {
    return absl::InvalidArgumentError(
        "a message without a body this program knows: are it and the daemon of one version?");
  }
  LogNews news;
  CopyFields(news, wire);
  return news;
}

}  // namespace convene::rendezvous
