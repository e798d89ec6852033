#include "rendezvous/journal/record_wire.h"

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rendezvous/quorum/decide.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

v1::JobRecord::Phase PackPhase(Phase phase) {
  switch (phase) {
    case Phase::kForming:
      return v1::JobRecord::PHASE_FORMING;
    case Phase::kRunning:
      return v1::JobRecord::PHASE_RUNNING;
    case Phase::kStopping:
      return v1::JobRecord::PHASE_STOPPING;
    case Phase::kClosed:
      return v1::JobRecord::PHASE_CLOSED;
  }
  return v1::JobRecord::PHASE_UNSPECIFIED;
}

absl::StatusOr<Phase> UnpackPhase(v1::JobRecord::Phase phase) {
  switch (phase) {
    case v1::JobRecord::PHASE_FORMING:
      return Phase::kForming;
    case v1::JobRecord::PHASE_RUNNING:
      return Phase::kRunning;
    case v1::JobRecord::PHASE_STOPPING:
      return Phase::kStopping;
    case v1::JobRecord::PHASE_CLOSED:
      return Phase::kClosed;
    default:
      return absl::DataLossError(absl::StrCat("phase ", static_cast<int>(phase), " is none"));
  }
}

v1::JobRecord::Cause PackCause(Cause cause) {
  switch (cause) {
    case Cause::kNone:
      return v1::JobRecord::CAUSE_NONE;
    case Cause::kMembership:
      return v1::JobRecord::CAUSE_MEMBERSHIP;
    case Cause::kFailure:
      return v1::JobRecord::CAUSE_FAILURE;
    case Cause::kLoss:
      return v1::JobRecord::CAUSE_LOSS;
  }
  return v1::JobRecord::CAUSE_NONE;
}

absl::StatusOr<Cause> UnpackCause(v1::JobRecord::Cause cause) {
  switch (cause) {
    case v1::JobRecord::CAUSE_NONE:
      return Cause::kNone;
    case v1::JobRecord::CAUSE_MEMBERSHIP:
      return Cause::kMembership;
    case v1::JobRecord::CAUSE_FAILURE:
      return Cause::kFailure;
    case v1::JobRecord::CAUSE_LOSS:
      return Cause::kLoss;
    default:
      return absl::DataLossError(absl::StrCat("cause ", static_cast<int>(cause), " is none"));
  }
}

// Parts that also travel between agent and daemon are packed as in the messages.
template <typename Event>
pb::DaemonMessage Pack(Event event) {
  return ToWire(Incarnation(), DaemonEvent{Epoch(), std::move(event)});
}

pb::AgentMessage PackFromAgent(std::variant<Hello, AgentEvent> body) {
  return ToWire(AgentEnvelope{Incarnation(), Epoch(), std::move(body)});
}

template <typename Event>
absl::StatusOr<Event> Unpack(const pb::DaemonMessage& message) {
  CONVENE_ASSIGN_OR_RETURN(DaemonEvent event, FromWire(message));
  return std::get<Event>(std::move(event.body));
}

absl::StatusOr<Hello> UnpackHello(const pb::Hello& wire) {
  pb::AgentMessage message;
  *message.mutable_hello() = wire;
  CONVENE_ASSIGN_OR_RETURN(AgentEnvelope envelope, FromWire(message));
  Hello hello = std::get<Hello>(std::move(envelope.body));
  CONVENE_RETURN_IF_ERROR(ValidateHello(hello));
  return hello;
}

absl::StatusOr<WorkerFailure> UnpackFailure(const pb::WorkerFailure& wire) {
  pb::AgentMessage message;
  *message.mutable_worker_failed()->mutable_failure() = wire;
  CONVENE_ASSIGN_OR_RETURN(AgentEnvelope envelope, FromWire(message));
  return std::get<WorkerFailure>(std::get<AgentEvent>(std::move(envelope.body)));
}

MemberRecord UnpackMember(const v1::MemberRecord& wire) {
  MemberRecord member;
  member.host = wire.host();
  member.incarnation = Incarnation(wire.incarnation());
  member.node_rank = wire.node_rank();
  member.local_world_size = wire.local_world_size();
  // Journals of an earlier version hold no roles.
  if (!wire.role().empty()) member.role = wire.role();
  member.lease = absl::Milliseconds(wire.lease_ms());
  member.seat = wire.seat();
  member.group_rank = wire.group_rank();
  member.first_global_rank = wire.first_global_rank();
  member.first_role_rank = wire.first_role_rank();
  member.role_world_size = wire.role_world_size();
  member.takes_part = wire.takes_part();
  member.succeeded = wire.succeeded();
  member.topology = wire.topology();
  return member;
}

absl::Status CheckMembers(const JobRecord& record) {
  if (record.members.size() > kMostNodesPerJob) {
    return absl::DataLossError(absl::StrCat(record.members.size(), " members"));
  }
  if (record.phase == Phase::kClosed && !record.members.empty()) {
    return absl::DataLossError("closed, and has members");
  }
  std::set<int> seats;
  std::set<int> node_ranks;
  std::set<std::tuple<std::string, int, Incarnation>> processes;
  for (const MemberRecord& member : record.members) {
    const bool is_distinct =
        member.seat >= 0 && seats.insert(member.seat).second &&
        (member.node_rank < 0 || node_ranks.insert(member.node_rank).second) &&
        processes.insert({member.host, member.node_rank, member.incarnation}).second;
    if (!is_distinct || member.local_world_size < 1 || member.lease <= absl::ZeroDuration()) {
      return absl::DataLossError(absl::StrCat("member ", member.host, " in seat ", member.seat));
    }
  }
  return absl::OkStatus();
}

int64_t MsAgo(const JobRecord& record, MonotonicTime at) {
  return absl::ToInt64Milliseconds(record.taken_at - at);
}

// The restarts that failures have cost, and the nodes that were blamed for them.
void PackPast(const JobRecord& record, v1::JobRecord* wire) {
  const RestartBudget& budget = record.budget;
  wire->set_failure_count(budget.failure_count);
  wire->set_stuck_count(budget.stuck_count);
  for (const MonotonicTime at : budget.failed_at) wire->add_failed_ms_ago(MsAgo(record, at));
  if (budget.highest_step.has_value()) {
    wire->mutable_advance()->set_highest_step(*budget.highest_step);
    wire->mutable_advance()->set_since_failure(budget.advanced);
  }
  for (const auto& [key, conduct] : record.conduct.records) {
    v1::ConductRecord* packed = wire->add_conduct();
    packed->set_host(key.host);
    packed->set_node_rank(key.node_rank);
    for (const ConductRecord::Offence& offence : conduct.offences) {
      packed->add_offence_epoch(offence.epoch.value());
      packed->add_offence_ms_ago(MsAgo(record, offence.at));
    }
    packed->set_exclusions(conduct.exclusions);
    packed->set_excluded_for_ms(-MsAgo(record, conduct.excluded_until));
    packed->set_why(conduct.why);
  }
  for (const FailureRecord& failure : record.conduct.last_failures) {
    v1::PastFailure* packed = wire->add_last_failures();
    packed->set_epoch(failure.epoch.value());
    packed->set_what(failure.what);
    packed->set_ms_ago(MsAgo(record, failure.at));
  }
}

absl::Status UnpackPast(const v1::JobRecord& wire, JobRecord* record) {
  const auto at = [record](int64_t ms_ago) {
    return record->taken_at - absl::Milliseconds(ms_ago);
  };
  if (wire.failed_ms_ago_size() > static_cast<int>(RestartBudget::kMostRemembered) ||
      wire.conduct_size() > static_cast<int>(Conduct::kMostRecords) ||
      wire.last_failures_size() > static_cast<int>(Conduct::kMostFailures)) {
    return absl::DataLossError("more failures than are ever remembered");
  }
  RestartBudget& budget = record->budget;
  budget.failure_count = wire.failure_count();
  budget.stuck_count = wire.stuck_count();
  for (const int64_t ms_ago : wire.failed_ms_ago()) budget.failed_at.push_back(at(ms_ago));
  if (wire.has_advance()) {
    budget.highest_step = wire.advance().highest_step();
    budget.advanced = wire.advance().since_failure();
  }
  for (const v1::ConductRecord& packed : wire.conduct()) {
    ConductRecord& conduct = record->conduct.records[{packed.host(), packed.node_rank()}];
    const int offences = packed.offence_epoch_size();
    if (offences != packed.offence_ms_ago_size() ||
        offences > static_cast<int>(Conduct::kMostOffences)) {
      return absl::DataLossError(absl::StrCat("offences of ", packed.host()));
    }
    for (int i = 0; i < offences; ++i) {
      conduct.offences.push_back({Epoch(packed.offence_epoch(i)), at(packed.offence_ms_ago(i))});
    }
    conduct.exclusions = packed.exclusions();
    conduct.excluded_until = at(-packed.excluded_for_ms());
    conduct.why = packed.why();
  }
  for (const v1::PastFailure& packed : wire.last_failures()) {
    record->conduct.last_failures.push_back(
        {Epoch(packed.epoch()), packed.what(), at(packed.ms_ago())});
  }
  return absl::OkStatus();
}

absl::StatusOr<JobRecord> Unpack(const v1::JobRecord& wire) {
  JobRecord record;
  CONVENE_ASSIGN_OR_RETURN(record.founder, UnpackHello(wire.founder()));
  CONVENE_ASSIGN_OR_RETURN(record.phase, UnpackPhase(wire.phase()));
  CONVENE_ASSIGN_OR_RETURN(record.cause, UnpackCause(wire.cause()));
  record.floor = Epoch(wire.floor());
  record.epoch = Epoch(wire.epoch());
  record.highest_epoch = Epoch(wire.highest_epoch());
  for (const v1::MemberRecord& member : wire.members()) {
    record.members.push_back(UnpackMember(member));
  }
  pb::DaemonMessage message;
  *message.mutable_assignment() = wire.assignment();
  CONVENE_ASSIGN_OR_RETURN(record.assignment, Unpack<Assignment>(message));
  record.epoch_size = wire.epoch_size();
  record.succeeded_count = wire.succeeded_count();
  CONVENE_RETURN_IF_ERROR(UnpackPast(wire, &record));
  record.vain_epochs = wire.vain_epochs();
  record.ran = absl::Milliseconds(wire.ran_ms());
  record.cause_text = wire.cause_text();
  if (wire.has_failure()) {
    CONVENE_ASSIGN_OR_RETURN(record.failure, UnpackFailure(wire.failure()));
  }
  *message.mutable_stop() = wire.stop();
  CONVENE_ASSIGN_OR_RETURN(Stop stop, Unpack<Stop>(message));
  record.stop_kind = stop.kind;
  record.stop_why = std::move(stop.why);
  record.last_departure_was_leave = wire.last_departure_was_leave();
  message.mutable_close()->set_outcome(wire.outcome());
  CONVENE_ASSIGN_OR_RETURN(const Close close, Unpack<Close>(message));
  record.outcome = close.outcome;
  record.why = wire.why();
  CONVENE_RETURN_IF_ERROR(CheckMembers(record));
  return record;
}

}  // namespace

v1::JobRecord ToWire(const JobRecord& record) {
  v1::JobRecord wire;
  *wire.mutable_founder() = PackFromAgent(record.founder).hello();
  wire.set_phase(PackPhase(record.phase));
  wire.set_floor(record.floor.value());
  wire.set_epoch(record.epoch.value());
  wire.set_highest_epoch(record.highest_epoch.value());
  for (const MemberRecord& member : record.members) {
    v1::MemberRecord* packed = wire.add_members();
    packed->set_host(member.host);
    packed->set_incarnation(member.incarnation.value());
    packed->set_node_rank(member.node_rank);
    packed->set_local_world_size(member.local_world_size);
    packed->set_role(member.role);
    packed->set_lease_ms(absl::ToInt64Milliseconds(member.lease));
    packed->set_seat(member.seat);
    packed->set_group_rank(member.group_rank);
    packed->set_first_global_rank(member.first_global_rank);
    packed->set_first_role_rank(member.first_role_rank);
    packed->set_role_world_size(member.role_world_size);
    packed->set_takes_part(member.takes_part);
    packed->set_succeeded(member.succeeded);
    packed->set_topology(member.topology);
  }
  *wire.mutable_assignment() = Pack(record.assignment).assignment();
  wire.set_epoch_size(record.epoch_size);
  wire.set_succeeded_count(record.succeeded_count);
  PackPast(record, &wire);
  wire.set_vain_epochs(record.vain_epochs);
  wire.set_ran_ms(absl::ToInt64Milliseconds(record.ran));
  wire.set_cause(PackCause(record.cause));
  wire.set_cause_text(record.cause_text);
  if (record.failure.has_value()) {
    *wire.mutable_failure() = PackFromAgent(AgentEvent(*record.failure)).worker_failed().failure();
  }
  *wire.mutable_stop() = Pack(Stop{record.stop_kind, record.stop_why}).stop();
  wire.set_last_departure_was_leave(record.last_departure_was_leave);
  wire.set_outcome(Pack(Close{record.outcome, "", std::nullopt}).close().outcome());
  wire.set_why(record.why);
  return wire;
}

absl::StatusOr<JobRecord> FromWire(const v1::JobRecord& wire) {
  absl::StatusOr<JobRecord> record = Unpack(wire);
  if (record.ok()) return record;
  return absl::DataLossError(absl::StrCat("the record of job \"", wire.founder().job_id(),
                                          "\" makes no sense: ", record.status().message()));
}

}  // namespace convene::rendezvous
