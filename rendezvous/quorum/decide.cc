#include "rendezvous/quorum/decide.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rendezvous/quorum/ranks.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

using WaitingFor = Decision::WaitingFor;

constexpr size_t kNamesInText = 3;
// The wait between epochs in vain, from the second one on; it doubles each time.
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(500);
constexpr absl::Duration kLongestBackoff = absl::Seconds(30);

std::string Nodes(int count) { return absl::StrCat(count, count == 1 ? " node" : " nodes"); }

Decision Wait(WaitingFor waiting_for, MonotonicTime until, std::string why) {
  return {.waiting_for = waiting_for, .why = std::move(why), .wake_at = until};
}

Decision Stop(StopKind kind, std::string why) {
  return {.kind = Decision::Kind::kStop, .stop_kind = kind, .why = std::move(why)};
}

Decision Close(Outcome outcome, std::string why) {
  return {.kind = Decision::Kind::kClose, .outcome = outcome, .why = std::move(why)};
}

// Walks all `members`, so it is only for texts that are made once, not at each event.
template <typename MemberIds>
std::string NamesOf(const JobState& state, const MemberIds& ids) {
  std::vector<std::string> names;
  for (const MemberId id : ids) names.push_back(NodeName(*state.Find(id)));
  return JoinCapped(names, kNamesInText);
}

Decision Form(MonotonicTime now, const JobState& state, const JobPolicy& policy,
              absl::string_view reason) {
  Decision decision = {.kind = Decision::Kind::kForm};
  Seating seating = SeatMembers(state, policy.nodes_max);
  decision.why = absl::StrCat(Nodes(static_cast<int>(seating.members.size())), ": ", reason);
  std::vector<MemberId> excluded;
  if (!state.conduct().records.empty()) {
    for (const MemberId id : seating.members) {
      if (state.conduct().Excluded(now, KeyOf(*state.Find(id))) != nullptr) excluded.push_back(id);
    }
  }
  if (!excluded.empty()) {
    absl::StrAppend(&decision.why, "; ", NamesOf(state, excluded),
                    " in spite of its cool-down: nodes_min could not be reached without it");
  }
  decision.members = std::move(seating.members);
  decision.seats = std::move(seating.seats);
  return decision;
}

// Walks all nodes, as NamesOf does.
std::vector<MemberId> NodesIn(const JobState& state, NodeState wanted) {
  std::vector<MemberId> ids;
  for (const auto& [id, node] : state.nodes()) {
    if (node.state == wanted) ids.push_back(id);
  }
  return ids;
}

// The end of a job whose failure no further epoch can mend, or is allowed to; none: it goes on.
std::optional<Decision> DecideFailed(MonotonicTime now, const JobState& state,
                                     const JobPolicy& policy) {
  if (state.cause() != Cause::kFailure) return std::nullopt;
  const auto close = [&](const auto&... reason) {
    return Close(Outcome::kFailed, absl::StrCat(state.cause_text(), reason...));
  };
  const bool is_final = state.failure().has_value() && state.failure()->is_final;
  if (is_final) return close(", which a restart would not mend");
  const RestartBudget& budget = state.budget();
  const int counted = budget.CountedAt(now, policy.restart_window);
  if (counted > policy.max_restarts) {
    const std::string window =
        policy.restart_window == absl::ZeroDuration()
            ? ""
            : absl::StrCat(" within ", absl::FormatDuration(policy.restart_window), " (",
                           budget.failure_count, " in all)");
    return close("; failure ", counted, window, ", and --max-restarts allows ",
                 policy.max_restarts);
  }
  if (policy.max_stuck_restarts == 0 || budget.stuck_count < policy.max_stuck_restarts) {
    return std::nullopt;
  }
  return close("; ", budget.stuck_count, " restarts in a row brought no step beyond ",
               *budget.highest_step, ", and --max-stuck-restarts allows no more");
}

// The end of a job in an epoch; none: it goes on.
std::optional<Decision> DecideEnd(MonotonicTime now, const JobState& state,
                                  const JobPolicy& policy) {
  if (state.cause() == Cause::kNone && state.succeeded_count() == state.epoch_size()) {
    return Close(Outcome::kSucceeded, "the workers of every node succeeded");
  }
  return DecideFailed(now, state, policy);
}

// Fewer than nodes_min are ready.
Decision DecideBelowMinimum(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (state.is_abandoned()) return Close(Outcome::kLeft, "no node is left");
  MonotonicTime deadline = state.forming_since() + policy.join_timeout;
  // Nodes that came back may still save: the job waits for them.
  if (state.old_workers_count() > 0) deadline = std::max(deadline, state.old_workers_until());
  std::string count =
      absl::StrCat(state.ready_count(), " of at least ", Nodes(policy.nodes_min), " ready");
  const std::string departure =
      state.last_departure().empty() ? "" : absl::StrCat("; ", state.last_departure());
  if (now < deadline) return Wait(WaitingFor::kNodes, deadline, count + departure);
  if (state.joining_count() > 0) {
    absl::StrAppend(&count, ", still busy: ", NamesOf(state, NodesIn(state, NodeState::kJoining)));
  }
  return Close(Outcome::kTimedOut,
               absl::StrCat(count, " when the join timeout of ",
                            absl::FormatDuration(policy.join_timeout), " was over", departure));
}

absl::Duration BackoffAfter(int vain_epochs) {
  if (vain_epochs < 2) return absl::ZeroDuration();
  absl::Duration wait = kFirstBackoff;
  for (int i = 2; i < vain_epochs && wait < kLongestBackoff; ++i) wait *= 2;
  return std::min(wait, kLongestBackoff);
}

// nodes_min are ready, and so is every survivor of the epoch before.
Decision DecideReforming(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  const int vain = state.VainEpochs(std::min(state.ready_count(), policy.nodes_max));
  const absl::Duration backoff = BackoffAfter(vain);
  const MonotonicTime begin = state.waiting_since() + backoff;
  if (now >= begin) {
    const std::string waited =
        backoff == absl::ZeroDuration()
            ? ""
            : absl::StrCat(", and ", absl::FormatDuration(backoff),
                           " have passed since the last of ", vain, " epochs in vain");
    return Form(now, state, policy, absl::StrCat("every survivor is ready", waited));
  }
  return Wait(WaitingFor::kBackoff, begin,
              absl::StrCat(state.cause_text(), ", ", vain,
                           " times in a row with the same nodes: the next epoch waits for ",
                           absl::FormatDuration(backoff)));
}

Decision DecideForming(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (state.ready_count() < policy.nodes_min) return DecideBelowMinimum(now, state, policy);
  if (state.old_workers_count() > 0 && now < state.old_workers_until()) {
    return Wait(
        WaitingFor::kOldWorkers, state.old_workers_until(),
        absl::StrCat(Nodes(state.ready_count()), " ready; ", Nodes(state.old_workers_count()),
                     " came back on a new connection and must stop the workers of an earlier "
                     "epoch first"));
  }
  // Every survivor is ready, or the job would still be stopping.
  if (state.epoch() != Epoch()) return DecideReforming(now, state, policy);
  if (state.ready_count() >= policy.nodes_expected) {
    return Form(now, state, policy, "every expected node is ready");
  }
  const MonotonicTime join_deadline = state.waiting_since() + policy.join_timeout;
  if (now >= join_deadline) return Form(now, state, policy, "the join timeout is over");
  if (state.joining_count() > 0) {
    return Wait(WaitingFor::kSlowNodes, join_deadline,
                absl::StrCat(Nodes(state.ready_count()), " ready, ", state.joining_count(),
                             " more on the way"));
  }
  if (policy.last_call == absl::ZeroDuration()) {
    const MonotonicTime quiet = state.admission().latest_arrival + kGathering;
    if (now >= quiet) return Form(now, state, policy, "nobody else is expected");
    return Wait(WaitingFor::kLastCall, std::min(quiet, join_deadline),
                absl::StrCat(Nodes(state.ready_count()), " ready, enough to start; waiting ",
                             absl::FormatDuration(kGathering), " for nodes that start with them"));
  }
  const MonotonicTime last_call = *state.minimum_since() + policy.last_call;
  if (now >= last_call) return Form(now, state, policy, "the last call is over");
  return Wait(WaitingFor::kLastCall, std::min(last_call, join_deadline),
              absl::StrCat(Nodes(state.ready_count()),
                           " ready, enough to start; last call for up to ", policy.nodes_expected));
}

// A seat is free for nodes of the bench. REQUIRES: the job runs.
Decision DecideAdmission(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  const MonotonicTime due = state.admission().DueAt(policy.admission);
  if (now >= due) {
    return Stop(StopKind::kCheckpoint,
                absl::StrCat("a seat is free for ", NamesOf(state, state.bench()),
                             ": the workers save and start again"));
  }
  return Wait(WaitingFor::kArrivals, due,
              absl::StrCat("running on ", Nodes(state.member_count()), "; ",
                           Nodes(std::min(static_cast<int>(state.bench().size()),
                                          policy.nodes_max - state.member_count())),
                           " more will be let in when no other node has arrived for ",
                           absl::FormatDuration(policy.admission)));
}

// Decides about the nodes that wait for a seat while the job runs, in the order of arrival: the
// first `placed` of them get the free seats and the spares' places.
Decision DecideSurplus(MonotonicTime now, const JobState& state, const JobPolicy& policy,
                       size_t placed) {
  MonotonicTime next = MonotonicTime::InfiniteFuture();
  Decision dismiss = {.kind = Decision::Kind::kDismiss};
  const std::set<MemberId>& bench = state.bench();
  if (bench.size() > placed) {
    for (auto id = std::next(bench.begin(), placed); id != bench.end(); ++id) {
      const MonotonicTime end = state.Find(*id)->joined_at + policy.join_timeout;
      if (now < end) {
        next = end;  // The nodes after it came later.
        break;
      }
      dismiss.members.push_back(*id);
    }
  }
  if (dismiss.members.empty()) {
    std::string why = absl::StrCat("running on ", Nodes(state.member_count()));
    if (state.away_count() > 0) {
      absl::StrAppend(&why, ", ", state.away_count(),
                      " of them not heard of since the daemon was restarted");
    }
    return Wait(WaitingFor::kWorkers, next, std::move(why));
  }
  dismiss.why = absl::StrCat("no seat became free within the join timeout of ",
                             absl::FormatDuration(policy.join_timeout), ": the job runs on ",
                             Nodes(state.member_count()), " with ", policy.spares,
                             policy.spares == 1 ? " spare" : " spares");
  return dismiss;
}

Decision DecideRunning(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (auto end = DecideEnd(now, state, policy)) return *std::move(end);
  if (state.cause() != Cause::kNone) return Stop(StopKind::kAbort, state.cause_text());
  const int free = policy.nodes_max - state.member_count();
  // A job that is about to end is not started anew for a latecomer. Nor is a job whose members are
  // still on their way back to a restarted daemon.
  if (!state.bench().empty() && free > 0 && state.succeeded_count() == 0 &&
      state.away_count() == 0) {
    return DecideAdmission(now, state, policy);
  }
  return DecideSurplus(now, state, policy,
                       static_cast<size_t>(free) + static_cast<size_t>(policy.spares));
}

Decision DecideStopping(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (auto end = DecideEnd(now, state, policy)) return *std::move(end);
  if (state.stop_kind() == StopKind::kCheckpoint && state.cause() != Cause::kNone) {
    return Stop(StopKind::kAbort, state.cause_text());
  }
  const MonotonicTime deadline = state.waiting_since() + StopTimeout(state, policy);
  if (now < deadline) {
    return Wait(WaitingFor::kStops, deadline,
                absl::StrCat("waiting for ", Nodes(state.running_count()), " to stop"));
  }
  Decision drop = {.kind = Decision::Kind::kDrop, .members = NodesIn(state, NodeState::kRunning)};
  drop.why = absl::StrCat(NamesOf(state, drop.members), " did not stop the workers within ",
                          absl::FormatDuration(StopTimeout(state, policy)));
  return drop;
}

// The decision about excluded nodes; none: they stay where they are.
std::optional<Decision> DecideCooling(MonotonicTime now, const JobState& state,
                                      const JobPolicy& policy) {
  std::vector<std::pair<MonotonicTime, MemberId>> by_end;
  for (const MemberId id : state.cooling()) by_end.emplace_back(state.ExcludedUntil(id), id);
  std::sort(by_end.begin(), by_end.end());
  Decision admit = {.kind = Decision::Kind::kAdmit};
  for (const auto& [end, id] : by_end) {
    if (end <= now) admit.members.push_back(id);
  }
  if (!admit.members.empty()) {
    admit.why = absl::StrCat("the cool-down of ", NamesOf(state, admit.members), " is over");
    return admit;
  }
  const int missing = policy.nodes_min - state.ready_count();
  const bool others_may_do =
      state.joining_count() >= missing && now < state.forming_since() + policy.join_timeout;
  if (state.phase() != Phase::kForming || missing <= 0 || others_may_do ||
      static_cast<int>(by_end.size()) < missing) {
    return std::nullopt;
  }
  for (int i = 0; i < missing; ++i) admit.members.push_back(by_end[i].second);
  admit.why =
      absl::StrCat(NamesOf(state, admit.members), " in spite of its cool-down: without it only ",
                   state.ready_count(), " of at least ", Nodes(policy.nodes_min), " are there");
  return admit;
}

Decision DecideInPhase(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  switch (state.phase()) {
    case Phase::kForming:
      return DecideForming(now, state, policy);
    case Phase::kRunning:
      return DecideRunning(now, state, policy);
    case Phase::kStopping:
      return DecideStopping(now, state, policy);
    case Phase::kClosed:
      break;
  }
  return Wait(WaitingFor::kNothing, MonotonicTime::InfiniteFuture(), "closed");
}

absl::Status Same(absl::string_view field, int64_t ours, int64_t theirs) {
  if (ours == theirs) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", theirs, " on this node, but the job began with ", ours,
      ": start every node with the same command, or use another --rdzv-id for another job"));
}

// Names go to the logs and terminals of everybody.
absl::Status CheckNames(const Hello& hello) {
  const struct {
    absl::string_view field, name;
  } names[] = {{"job_id", hello.job_id},
               {"host", hello.host},
               {"role", hello.role},
               {"topology", hello.topology}};
  for (const auto& [field, name] : names) {
    const std::string shown = Printable(name);
    if (shown == name) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        field, " is \"", shown, "\", with a control character as '?': give a name without"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateHello(const Hello& hello) {
  constexpr int64_t kLongestName = 256;
  constexpr int64_t kLongestWaitMs = int64_t{366} * 24 * 3600 * 1000;
  constexpr int64_t kMostRestarts = 1 << 30;
  const auto ms = [](absl::Duration duration) { return absl::ToInt64Milliseconds(duration); };
  const bool has_window = hello.restart_window > absl::ZeroDuration();
  const struct {
    absl::string_view field;
    int64_t value, least, most;
  } ranges[] = {
      {"length of job_id", std::ssize(hello.job_id), 1, kLongestName},
      {"length of host", std::ssize(hello.host), 1, kLongestName},
      {"node_rank", hello.node_rank, -1, kMostNodesPerJob - 1},
      {"local_world_size", hello.local_world_size, 1, kMostWorkersPerNode},
      {"nodes_max", hello.nodes_max, 1, kMostNodesPerJob},
      {"nodes_min", hello.nodes_min, 1, hello.nodes_max},
      {"nodes_expected", hello.nodes_expected, 0, kMostNodesPerJob},
      {"max_restarts", hello.max_restarts, 0, kMostRestarts},
      {"join_timeout_ms", ms(hello.join_timeout), 0, kLongestWaitMs},
      {"last_call_ms", ms(hello.last_call), 0, kLongestWaitMs},
      {"length of role", std::ssize(hello.role), 0, kLongestName},
      {"length of topology", std::ssize(hello.topology), 0, kLongestName},
      {"spares", hello.spares, 0, kMostNodesPerJob - int64_t{hello.nodes_max}},
      {"restart_window_ms", ms(hello.restart_window), 0, kLongestWaitMs},
      {"max_restarts within a restart_window", has_window ? hello.max_restarts : 0, 0,
       RestartBudget::kMostRemembered - 1},
      {"max_stuck_restarts", hello.max_stuck_restarts, 0, kMostRestarts},
      {"admission_ms", ms(hello.admission), 0, kLongestWaitMs},
      {"stop_limit_ms", ms(hello.stop_limit), 0, kLongestWaitMs},
      {"lease_ms", ms(hello.lease), 100, 3600 * 1000},
      {"last_epoch", hello.last_epoch.value(), 0, int64_t{1} << 62},
  };
  for (const auto& [field, value, least, most] : ranges) {
    if (value >= least && value <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is ", value, "; it must be from ", least, " to ", most));
  }
  return CheckNames(hello);
}

JobPolicy PolicyOf(const Hello& hello) {
  const bool is_counted = hello.nodes_expected > 0;  // by a scheduler
  const bool is_asked_for = hello.last_call > absl::ZeroDuration();
  return {.nodes_min = hello.nodes_min,
          .nodes_max = hello.nodes_max,
          .nodes_expected = std::clamp(is_counted ? hello.nodes_expected : hello.nodes_max,
                                       hello.nodes_min, hello.nodes_max),
          .max_restarts = hello.max_restarts,
          .join_timeout = hello.join_timeout,
          .last_call = is_asked_for || !is_counted ? hello.last_call
                                                   : std::min(kLastCall, hello.join_timeout),
          .spares = hello.spares,
          .restart_window = hello.restart_window,
          .max_stuck_restarts = hello.max_stuck_restarts,
          .admission = hello.admission,
          .excludes_stragglers = hello.excludes_stragglers};
}

absl::Duration StopTimeout(const JobState& state, const JobPolicy& policy) {
  return std::max(policy.join_timeout, state.stop_limit());
}

absl::Status CheckAgreement(const JobPolicy& policy, const Hello& hello) {
  CONVENE_RETURN_IF_ERROR(Same("nodes_min (--nnodes)", policy.nodes_min, hello.nodes_min));
  CONVENE_RETURN_IF_ERROR(Same("nodes_max (--nnodes)", policy.nodes_max, hello.nodes_max));
  return Same("max_restarts (--max-restarts)", policy.max_restarts, hello.max_restarts);
}

Decision Decide(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (!state.cooling().empty()) {
    if (auto decision = DecideCooling(now, state, policy)) return *std::move(decision);
  }
  Decision decision = DecideInPhase(now, state, policy);
  const bool leads_to_epoch =
      decision.kind == Decision::Kind::kForm ||
      (decision.kind == Decision::Kind::kStop && decision.stop_kind == StopKind::kCheckpoint);
  if (leads_to_epoch && state.loses_daemon()) {
    decision = Wait(WaitingFor::kNextDaemon, MonotonicTime::InfiniteFuture(),
                    "this daemon is told to end, and no node may go on in its place: the next "
                    "daemon forms the epoch");
  }
  if (decision.kind == Decision::Kind::kWait) {
    for (const MemberId id : state.cooling()) {
      decision.wake_at = std::min(decision.wake_at, state.ExcludedUntil(id));
    }
  }
  return decision;
}

}  // namespace convene::rendezvous
