#include "rendezvous/journal/record_wire.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/decide.h"
#include "rendezvous/wire/fields.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// Each by its value in quorum.
constexpr v1::JobRecord::Phase kPhases[] = {
    v1::JobRecord::PHASE_FORMING, v1::JobRecord::PHASE_RUNNING, v1::JobRecord::PHASE_STOPPING,
    v1::JobRecord::PHASE_CLOSED};
constexpr v1::JobRecord::Cause kCauses[] = {
    v1::JobRecord::CAUSE_NONE, v1::JobRecord::CAUSE_MEMBERSHIP, v1::JobRecord::CAUSE_FAILURE,
    v1::JobRecord::CAUSE_LOSS};

template <typename Value, typename Wire, size_t count>
absl::Status UnpackEnum(const Wire (&known)[count], Wire wire, const char* what, Value* value) {
  const auto found = std::find(std::begin(known), std::end(known), wire);
  if (found == std::end(known)) {
    return absl::DataLossError(absl::StrCat(what, " ", static_cast<int>(wire), " is none"));
  }
  *value = static_cast<Value>(found - known);
  return absl::OkStatus();
}

template <typename Value, typename Wire>
void CopyMember(Value& value, Wire& wire) {
  CONVENE_FIELD(host);
  CONVENE_FIELD(incarnation);
  CONVENE_FIELD(node_rank);
  CONVENE_FIELD(local_world_size);
  CONVENE_FIELD(role);
  CONVENE_FIELD_AS(lease, lease_ms);
  CONVENE_FIELD(seat);
  CONVENE_FIELD(group_rank);
  CONVENE_FIELD(first_global_rank);
  CONVENE_FIELD(first_role_rank);
  CONVENE_FIELD(role_world_size);
  CONVENE_FIELD(takes_part);
  CONVENE_FIELD(succeeded);
  CONVENE_FIELD(topology);
}

template <typename Value, typename Wire>
void CopyScalars(Value& value, Wire& wire) {
  CONVENE_FIELD(floor);
  CONVENE_FIELD(epoch);
  CONVENE_FIELD(highest_epoch);
  CONVENE_FIELD(epoch_size);
  CONVENE_FIELD(succeeded_count);
  CONVENE_FIELD(vain_epochs);
  CONVENE_FIELD_AS(ran, ran_ms);
  CONVENE_FIELD(cause_text);
  CONVENE_FIELD(last_departure_was_leave);
  CONVENE_FIELD(why);
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
  record.founder = FromWire(wire.founder());
  CONVENE_RETURN_IF_ERROR(ValidateHello(record.founder));
  CONVENE_RETURN_IF_ERROR(UnpackEnum(kPhases, wire.phase(), "phase", &record.phase));
  CONVENE_RETURN_IF_ERROR(UnpackEnum(kCauses, wire.cause(), "cause", &record.cause));
  CopyScalars(record, wire);
  for (const v1::MemberRecord& packed : wire.members()) {
    MemberRecord& member = record.members.emplace_back();
    CopyMember(member, packed);
    if (member.role.empty()) member.role = MemberRecord().role;  // of an earlier version
  }
  record.assignment = FromWire(wire.assignment());
  CONVENE_RETURN_IF_ERROR(UnpackPast(wire, &record));
  if (wire.has_failure()) record.failure = FromWire(wire.failure());
  const Stop stop = FromWire(wire.stop());
  record.stop_kind = stop.kind;
  record.stop_why = stop.why;
  record.outcome = FromWire(wire.outcome());
  CONVENE_RETURN_IF_ERROR(CheckMembers(record));
  return record;
}

}  // namespace

v1::JobRecord ToWire(const JobRecord& record) {
  v1::JobRecord wire;
  ToWire(record.founder, wire.mutable_founder());
  wire.set_phase(kPhases[static_cast<size_t>(record.phase)]);
  wire.set_cause(kCauses[static_cast<size_t>(record.cause)]);
  CopyScalars(record, wire);
  for (const MemberRecord& member : record.members) CopyMember(member, *wire.add_members());
  ToWire(record.assignment, wire.mutable_assignment());
  PackPast(record, &wire);
  if (record.failure.has_value()) ToWire(*record.failure, wire.mutable_failure());
  ToWire(Stop{record.stop_kind, record.stop_why}, wire.mutable_stop());
  wire.set_outcome(ToWire(record.outcome));
  return wire;
}

absl::StatusOr<JobRecord> FromWire(const v1::JobRecord& wire) {
  absl::StatusOr<JobRecord> record = Unpack(wire);
  if (record.ok()) return record;
  return absl::DataLossError(absl::StrCat("the record of job \"", wire.founder().job_id(),
                                          "\" makes no sense: ", record.status().message()));
}

}  // namespace convene::rendezvous
