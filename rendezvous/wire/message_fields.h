// The field lists (fields.h) of the messages that the journal keeps, too. A text beyond the
// contract is cut off.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/wire/fields.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

inline constexpr int kMostLogLines = 20;
inline constexpr int kMostErrorLines = 4;

inline constexpr pb::Stop::Kind kStopKinds[] = {pb::Stop::KIND_ABORT, pb::Stop::KIND_CHECKPOINT};
// An outcome of a newer daemon is no success: it is read as kFailed, the default.
inline constexpr pb::Close::Outcome kOutcomes[] = {
    pb::Close::OUTCOME_SUCCEEDED, pb::Close::OUTCOME_FAILED, pb::Close::OUTCOME_TIMED_OUT,
    pb::Close::OUTCOME_LEFT};

// A path is bytes, not text.
inline std::string CutPath(const std::string& path) { return path.substr(0, 4096); }

// The longest numeric address has 45 characters.
inline std::string CutAddress(absl::string_view address) { return Utf8(address, 45); }

void CopyFields(Is<Hello> auto& value, auto& wire) {
  CONVENE_FIELD(job_id);
  CONVENE_FIELD(host);
  CONVENE_FIELD(node_rank);
  CONVENE_FIELD(local_world_size);
  CONVENE_WRITE_OR_READ(wire.set_role(Cut(value.role)),  // older agents do not tell it
                        if (!wire.role().empty()) value.role = Cut(wire.role()));
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
  CONVENE_FIELD_CLEAN(Cut, topology);
  CONVENE_FIELD(spares);
  CONVENE_FIELD_AS(restart_window, restart_window_ms);
  CONVENE_FIELD(max_stuck_restarts);
  CONVENE_FIELD(excludes_stragglers);
  CONVENE_FIELD_AS(admission, admission_ms);
  CONVENE_FIELD_CLEAN(Cut, log_directory);
  CONVENE_FIELD(has_workers);
  CONVENE_FIELD_AS(stop_limit, stop_limit_ms);
  CONVENE_CAPABILITY(publishes_logs, pb::CAPABILITY_LOGS);
  CONVENE_CAPABILITY(may_host, pb::CAPABILITY_HOSTS);
  CONVENE_WRITE_OR_READ(
      wire.set_said_at_ns(absl::ToInt64Nanoseconds(value.said_at.since_epoch())),
      value.said_at = MonotonicTime::FromEpoch(absl::Nanoseconds(wire.said_at_ns())));
}

void CopyFields(Is<WorkerFailure> auto& value, auto& wire) {
  CONVENE_FIELD(global_rank);
  CONVENE_FIELD(local_rank);
  CONVENE_FIELD_CLEAN(Cut, host);
  CONVENE_FIELD(pid);
  CONVENE_FIELD(exit_code);
  CONVENE_FIELD(signal);
  CONVENE_FIELD_CLEAN(Cut, why);
  CONVENE_FIELD(costs_budget);
  CONVENE_FIELD(is_final);
  CONVENE_FIELD_CLEAN(CutPath, error_file);
  CONVENE_FIELD_EACH(Cut, last_log_lines, kMostLogLines);
  CONVENE_FIELD_EACH(Cut, error_lines, kMostErrorLines);
  CONVENE_FIELD_EACH(Cut, kernel_lines, kMostErrorLines);
}

void CopyFields(Is<Assignment> auto& value, auto& wire) {
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
  CONVENE_FIELD_EACH(CutAddress, store_clients, kMostStoreClients);
  if constexpr (!kIsWritten<decltype(value)>) {
    if (value.role_world_size != 0) return;
    // To a daemon that knows no roles all workers have the same.
    value.first_role_rank = value.first_global_rank;
    value.role_world_size = value.world_size;
  }
}

void CopyFields(Is<Stop> auto& value, auto& wire) {
  CONVENE_FIELD_ENUM(kind, kStopKinds);
  CONVENE_FIELD(why);
}

}  // namespace convene::rendezvous
