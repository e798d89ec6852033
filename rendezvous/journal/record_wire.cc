#include "rendezvous/journal/record_wire.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/decide.h"
#include "rendezvous/wire/message_fields.h"
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

void CopyFields(Is<MemberRecord> auto& value, auto& wire) {
  CONVENE_FIELD(host);
  CONVENE_FIELD(incarnation);
  CONVENE_FIELD(node_rank);
  CONVENE_FIELD(local_world_size);
  CONVENE_WRITE_OR_READ(wire.set_role(value.role),  // an earlier version does not tell it
                        if (!wire.role().empty()) value.role = wire.role());
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

// All but the parts that hold points in time: they are below.
void CopyFields(Is<JobRecord> auto& value, auto& wire) {
  CONVENE_MESSAGE(founder);
  CONVENE_FIELD_ENUM(phase, kPhases);
  CONVENE_FIELD(floor);
  CONVENE_FIELD(epoch);
  CONVENE_FIELD(highest_epoch);
  CONVENE_MESSAGES(members);
  CONVENE_MESSAGE(assignment);
  CONVENE_FIELD(epoch_size);
  CONVENE_FIELD(succeeded_count);
  CONVENE_FIELD_AS(budget.failure_count, failure_count);
  CONVENE_FIELD_AS(budget.stuck_count, stuck_count);
  CONVENE_FIELD(vain_epochs);
  CONVENE_FIELD_AS(ran, ran_ms);
  CONVENE_FIELD_ENUM(cause, kCauses);
  CONVENE_FIELD(cause_text);
  CONVENE_OPTIONAL_MESSAGE(failure);
  CONVENE_FIELD(last_departure_was_leave);
  CONVENE_FIELD_ENUM(outcome, kOutcomes);
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
  CopyFields(record, wire);
  // A name that is no phase and no cause leaves the default.
  if (kPhases[static_cast<size_t>(record.phase)] != wire.phase()) {
    return absl::DataLossError(absl::StrCat("phase ", wire.phase(), " is none"));
  }
  if (kCauses[static_cast<size_t>(record.cause)] != wire.cause()) {
    return absl::DataLossError(absl::StrCat("cause ", wire.cause(), " is none"));
  }
  CONVENE_RETURN_IF_ERROR(ValidateHello(record.founder));
  CONVENE_RETURN_IF_ERROR(UnpackPast(wire, &record));
  Stop stop;
  CopyFields(stop, wire.stop());
  record.stop_kind = stop.kind;
  record.stop_why = stop.why;
  CONVENE_RETURN_IF_ERROR(CheckMembers(record));
  return record;
}

}  // namespace

v1::JobRecord ToWire(const JobRecord& record, absl::Time wall_now) {
  v1::JobRecord wire;
  CopyFields(record, wire);
  PackPast(record, &wire);
  const Stop stop{record.stop_kind, record.stop_why};
  CopyFields(stop, *wire.mutable_stop());
  wire.set_taken_at_unix_ms(absl::ToUnixMillis(wall_now));
  return wire;
}

absl::StatusOr<JobRecord> FromWire(const v1::JobRecord& wire, absl::Time wall_now) {
  absl::StatusOr<JobRecord> record = Unpack(wire);
  if (!record.ok()) {
    return absl::DataLossError(absl::StrCat("the record of job \"", wire.founder().job_id(),
                                            "\" makes no sense: ", record.status().message()));
  }
  if (wire.taken_at_unix_ms() > 0) {
    // A wall clock that was set back must not make a failure younger.
    record->age =
        std::max(wall_now - absl::FromUnixMillis(wire.taken_at_unix_ms()), absl::ZeroDuration());
  }
  return record;
}

std::string EncodeHandOver(const HandedOverJob& job, absl::Time wall_now) {
  v1::HandedOverJob wire;
  *wire.mutable_job() = ToWire(job.record, wall_now);
  JobView view;
  view.incidents = job.incidents;
  ToWire(view, wire.mutable_status());
  return wire.SerializeAsString();
}

absl::StatusOr<HandedOverJob> DecodeHandOver(const std::string& state, absl::Time wall_now) {
  v1::HandedOverJob wire;
  if (!wire.ParseFromString(state)) return absl::DataLossError("this is no job of a daemon");
  HandedOverJob job;
  CONVENE_ASSIGN_OR_RETURN(job.record, FromWire(wire.job(), wall_now));
  job.incidents = FromWire(wire.status()).incidents;
  return job;
}

}  // namespace convene::rendezvous
