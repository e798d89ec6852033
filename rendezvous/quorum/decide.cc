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
  Decision decision;
  decision.waiting_for = waiting_for;
  decision.wake_at = until;
  decision.why = std::move(why);
  return decision;
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
  Decision decision;
  decision.kind = Decision::Kind::kForm;
  Seating seating = SeatMembers(state, policy.nodes_max);
  decision.why = absl::StrCat(Nodes(static_cast<int>(seating.members.size())), ": ", reason);
  std::vector<MemberId> excluded;
  if (!state.conduct().records.empty()) {
    std::copy_if(seating.members.begin(), seating.members.end(), std::back_inserter(excluded),
                 [&](MemberId id) {
                   return state.conduct().Excluded(now, KeyOf(*state.Find(id))) != nullptr;
                 });
  }
  if (!excluded.empty()) {
    absl::StrAppend(&decision.why, "; ", NamesOf(state, excluded),
                    " in spite of its cool-down: nodes_min could not be reached without it");
  }
  decision.members = std::move(seating.members);
  decision.seats = std::move(seating.seats);
  return decision;
}

Decision Stop(StopKind kind, std::string why) {
  Decision decision;
  decision.kind = Decision::Kind::kStop;
  decision.stop_kind = kind;
  decision.why = std::move(why);
  return decision;
}

Decision Close(Outcome outcome, std::string why) {
  Decision decision;
  decision.kind = Decision::Kind::kClose;
  decision.outcome = outcome;
  decision.why = std::move(why);
  return decision;
}

// Walks all nodes, so it is only for texts that are made once, not at each event.
std::string NamesIn(const JobState& state, NodeState wanted) {
  std::vector<std::string> names;
  for (const auto& [id, node] : state.nodes()) {
    if (node.state == wanted) names.push_back(NodeName(node));
  }
  return JoinCapped(names, kNamesInText);
}

bool IsFinal(const JobState& state) {
  return state.failure().has_value() && state.failure()->is_final;
}

bool IsSpent(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  return state.budget().CountedAt(now, policy.restart_window) > policy.max_restarts;
}

bool IsStuck(const JobState& state, const JobPolicy& policy) {
  return policy.max_stuck_restarts > 0 && state.budget().stuck_count >= policy.max_stuck_restarts;
}

// Whether no further epoch can mend the failure, or none is allowed.
bool IsOver(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  return state.cause() == Cause::kFailure &&
         (IsSpent(now, state, policy) || IsStuck(state, policy) || IsFinal(state));
}

Decision CloseFailed(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (IsFinal(state)) {
    return Close(Outcome::kFailed,
                 absl::StrCat(state.cause_text(), ", which a restart would not mend"));
  }
  const RestartBudget& budget = state.budget();
  if (!IsSpent(now, state, policy)) {
    return Close(Outcome::kFailed,
                 absl::StrCat(state.cause_text(), "; ", budget.stuck_count,
                              " restarts in a row brought no step beyond ", *budget.highest_step,
                              ", and --max-stuck-restarts allows no more"));
  }
  std::string count = absl::StrCat(budget.CountedAt(now, policy.restart_window));
  if (policy.restart_window > absl::ZeroDuration()) {
    absl::StrAppend(&count, " within ", absl::FormatDuration(policy.restart_window), " (",
                    budget.failure_count, " in all)");
  }
  return Close(Outcome::kFailed, absl::StrCat(state.cause_text(), "; failure ", count,
                                              ", and --max-restarts allows ", policy.max_restarts));
}

// Fewer than nodes_min are ready.
Decision DecideBelowMinimum(MonotonicTime now, const JobState& state, const JobPolicy& policy) {
  if (state.is_abandoned()) return Close(Outcome::kLeft, "no node is left");
  MonotonicTime deadline = state.forming_since() + policy.join_timeout;
  // Nodes that came back may still save: the job waits for them.
  if (state.old_workers_count() > 0) deadline = std::max(deadline, state.old_workers_until());
  std::string count =
      absl::StrCat(state.ready_count(), " of at least ", Nodes(policy.nodes_min), " ready");
  if (now < deadline) return Wait(WaitingFor::kNodes, deadline, count);
  if (state.joining_count() > 0) {
    absl::StrAppend(&count, ", still busy: ", NamesIn(state, NodeState::kJoining));
  }
  return Close(Outcome::kTimedOut,
               absl::StrCat(count, " when the join timeout of ",
                            absl::FormatDuration(policy.join_timeout), " was over"));
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
  if (now >= begin && backoff == absl::ZeroDuration()) {
    return Form(now, state, policy, "every survivor is ready");
  }
  if (now >= begin) {
    return Form(now, state, policy,
                absl::StrCat("every survivor is ready, and ", absl::FormatDuration(backoff),
                             " have passed since the last of ", vain, " epochs in vain"));
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

bool AllSucceeded(const JobState& state) {
  return state.cause() == Cause::kNone && state.succeeded_count() == state.epoch_size();
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
  Decision dismiss;
  dismiss.kind = Decision::Kind::kDismiss;
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
  if (IsOver(now, state, policy)) return CloseFailed(now, state, policy);
  if (state.cause() != Cause::kNone) return Stop(StopKind::kAbort, state.cause_text());
  if (AllSucceeded(state)) return Close(Outcome::kSucceeded, "the workers of every node succeeded");
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
  if (IsOver(now, state, policy)) return CloseFailed(now, state, policy);
  if (AllSucceeded(state)) return Close(Outcome::kSucceeded, "the workers of every node succeeded");
  if (state.stop_kind() == StopKind::kCheckpoint && state.cause() != Cause::kNone) {
    return Stop(StopKind::kAbort, state.cause_text());
  }
  const MonotonicTime deadline = state.waiting_since() + StopTimeout(state, policy);
  if (now < deadline) {
    return Wait(WaitingFor::kStops, deadline,
                absl::StrCat("waiting for ", Nodes(state.running_count()), " to stop"));
  }
  Decision decision;
  decision.kind = Decision::Kind::kDrop;
  decision.why =
      absl::StrCat(NamesIn(state, NodeState::kRunning), " did not stop the workers within ",
                   absl::FormatDuration(StopTimeout(state, policy)));
  for (const auto& [id, node] : state.nodes()) {
    if (node.state == NodeState::kRunning) decision.members.push_back(id);
  }
  return decision;
}

// The decision about excluded nodes; none: they stay where they are.
std::optional<Decision> DecideCooling(MonotonicTime now, const JobState& state,
                                      const JobPolicy& policy) {
  std::vector<std::pair<MonotonicTime, MemberId>> by_end;
  for (const MemberId id : state.cooling()) by_end.emplace_back(state.ExcludedUntil(id), id);
  std::sort(by_end.begin(), by_end.end());
  Decision admit;
  admit.kind = Decision::Kind::kAdmit;
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

absl::Status InRange(absl::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be from ", least, " to ", most));
}

absl::Status Same(absl::string_view field, int64_t ours, int64_t theirs) {
  if (ours == theirs) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", theirs, " on this node, but the job began with ", ours,
      ": start every node with the same command, or use another --rdzv-id for another job"));
}

}  // namespace

absl::Status ValidateHello(const Hello& hello) {
  constexpr int64_t kLongestName = 256;
  constexpr int64_t kLongestWaitMs = int64_t{366} * 24 * 3600 * 1000;
  CONVENE_RETURN_IF_ERROR(InRange("length of job_id", hello.job_id.size(), 1, kLongestName));
  CONVENE_RETURN_IF_ERROR(InRange("length of host", hello.host.size(), 1, kLongestName));
  CONVENE_RETURN_IF_ERROR(InRange("node_rank", hello.node_rank, -1, kMostNodesPerJob - 1));
  CONVENE_RETURN_IF_ERROR(
      InRange("local_world_size", hello.local_world_size, 1, kMostWorkersPerNode));
  CONVENE_RETURN_IF_ERROR(InRange("nodes_max", hello.nodes_max, 1, kMostNodesPerJob));
  CONVENE_RETURN_IF_ERROR(InRange("nodes_min", hello.nodes_min, 1, hello.nodes_max));
  CONVENE_RETURN_IF_ERROR(InRange("nodes_expected", hello.nodes_expected, 0, kMostNodesPerJob));
  CONVENE_RETURN_IF_ERROR(InRange("max_restarts", hello.max_restarts, 0, 1 << 30));
  CONVENE_RETURN_IF_ERROR(
      InRange("join_timeout_ms", absl::ToInt64Milliseconds(hello.join_timeout), 0, kLongestWaitMs));
  CONVENE_RETURN_IF_ERROR(
      InRange("last_call_ms", absl::ToInt64Milliseconds(hello.last_call), 0, kLongestWaitMs));
  CONVENE_RETURN_IF_ERROR(InRange("length of role", hello.role.size(), 0, kLongestName));
  CONVENE_RETURN_IF_ERROR(InRange("length of topology", hello.topology.size(), 0, kLongestName));
  CONVENE_RETURN_IF_ERROR(
      InRange("spares", hello.spares, 0, kMostNodesPerJob - int64_t{hello.nodes_max}));
  CONVENE_RETURN_IF_ERROR(InRange(
      "restart_window_ms", absl::ToInt64Milliseconds(hello.restart_window), 0, kLongestWaitMs));
  if (hello.restart_window > absl::ZeroDuration()) {
    CONVENE_RETURN_IF_ERROR(InRange("max_restarts within a restart_window", hello.max_restarts, 0,
                                    RestartBudget::kMostRemembered - 1));
  }
  CONVENE_RETURN_IF_ERROR(InRange("max_stuck_restarts", hello.max_stuck_restarts, 0, 1 << 30));
  CONVENE_RETURN_IF_ERROR(
      InRange("admission_ms", absl::ToInt64Milliseconds(hello.admission), 0, kLongestWaitMs));
  CONVENE_RETURN_IF_ERROR(
      InRange("stop_limit_ms", absl::ToInt64Milliseconds(hello.stop_limit), 0, kLongestWaitMs));
  CONVENE_RETURN_IF_ERROR(
      InRange("lease_ms", absl::ToInt64Milliseconds(hello.lease), 100, 3600 * 1000));
  return InRange("last_epoch", hello.last_epoch.value(), 0, int64_t{1} << 62);
}

JobPolicy PolicyOf(const Hello& hello) {
  JobPolicy policy;
  policy.nodes_min = hello.nodes_min;
  policy.nodes_max = hello.nodes_max;
  policy.nodes_expected = hello.nodes_expected == 0
                              ? hello.nodes_max
                              : std::clamp(hello.nodes_expected, hello.nodes_min, hello.nodes_max);
  policy.max_restarts = hello.max_restarts;
  policy.join_timeout = hello.join_timeout;
  policy.last_call = hello.last_call;
  if (hello.last_call == absl::ZeroDuration() && hello.nodes_expected > 0) {
    policy.last_call = std::min(kLastCall, hello.join_timeout);
  }
  policy.spares = hello.spares;
  policy.restart_window = hello.restart_window;
  policy.max_stuck_restarts = hello.max_stuck_restarts;
  policy.admission = hello.admission;
  return policy;
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
    std::optional<Decision> decision = DecideCooling(now, state, policy);
    if (decision.has_value()) return *std::move(decision);
  }
  Decision decision = DecideInPhase(now, state, policy);
  if (decision.kind == Decision::Kind::kWait) {
    for (const MemberId id : state.cooling()) {
      decision.wake_at = std::min(decision.wake_at, state.ExcludedUntil(id));
    }
  }
  return decision;
}

}  // namespace convene::rendezvous
