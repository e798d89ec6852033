#include "tests/sim/invariants.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/counters.h"
#include "tests/sim/simulation.h"

namespace convene::sim {
namespace {

using rendezvous::Assignment;
using rendezvous::Job;
using rendezvous::JobPolicy;
using rendezvous::JobState;
using rendezvous::MemberId;
using rendezvous::Node;
using rendezvous::NodeState;
using rendezvous::Phase;

// Checks that nothing due is left undone.
void CheckPromptness(MonotonicTime now, const Job& job) {
  const JobState& state = job.state();
  const JobPolicy& policy = job.policy();
  Expect(job.wake_at() > now, "what was due now was not done");
  if (state.AllSilent(now)) return;  // Nobody is judged, and nothing decided.
  absl::Duration longest_lease;
  for (const auto& [id, node] : state.nodes()) longest_lease = std::max(longest_lease, node.lease);
  Expect(state.nodes().empty() || state.lease_watch() <= now + longest_lease,
         "nodes can be heard, and their leases are not looked at");
  const bool join_timeout_is_over = now >= state.waiting_since() + policy.join_timeout;
  const bool has_minimum = state.ready_count() >= policy.nodes_min;
  switch (state.phase()) {
    case Phase::kForming:
      if (state.old_workers_count() > 0 && now < state.old_workers_until()) break;
      if (state.loses_daemon()) break;  // The next daemon forms the epoch.
      Expect(now < state.forming_since() + policy.join_timeout || has_minimum,
             "the join timeout is over, and the job waits");
      Expect(!join_timeout_is_over || state.epoch() != Epoch() || !has_minimum,
             "the join timeout is over, and an epoch that can form does not");
      if (state.epoch() == Epoch()) {
        Expect(state.ready_count() < policy.nodes_expected, "all expected are ready, no epoch");
      } else if (has_minimum) {
        Expect(state.VainEpochs(std::min(state.ready_count(), policy.nodes_max)) >= 2,
               "an epoch that can form does not");
      }
      Expect(has_minimum || state.cooling().empty() || state.joining_count() > 0 ||
                 state.ready_count() + static_cast<int>(state.cooling().size()) < policy.nodes_min,
             "an epoch could form with a node that cools down");
      break;
    case Phase::kRunning: {
      const int free = policy.nodes_max - state.member_count();
      // The next daemon lets it in.
      const bool waits =
          state.succeeded_count() > 0 || state.away_count() > 0 || state.loses_daemon();
      Expect(state.bench().empty() || free == 0 || waits ||
                 now < state.admission().DueAt(policy.admission),
             "a late node is not let in");
      Expect(policy.admission == absl::ZeroDuration() || state.bench().empty() || free == 0 ||
                 waits || now < *state.admission().first_arrival + policy.admission * 4,
             "a late node was put off for too long");
      int place = 0;
      for (const MemberId id : state.bench()) {
        // An admission is due soon and decides about all of them.
        const bool is_admitting = free > 0 && !waits;
        Expect(is_admitting || place++ < free + policy.spares ||
                   now < state.Find(id)->joined_at + policy.join_timeout,
               "a node without a seat waits for ever");
      }
      break;
    }
    case Phase::kStopping:
      Expect(now < state.waiting_since() + StopTimeout(state, policy),
             "nodes that do not stop are not dropped");
      break;
    case Phase::kClosed:
      break;
  }
}

bool IsSame(const Assignment& a, const Assignment& b) {
  return a.group_rank == b.group_rank && a.first_global_rank == b.first_global_rank &&
         a.first_role_rank == b.first_role_rank && a.role_world_size == b.role_world_size;
}

bool IsOneStory(const Assignment& a, const Assignment& b) {
  return a.group_world_size == b.group_world_size && a.world_size == b.world_size &&
         a.store_host == b.store_host && a.store_port == b.store_port &&
         a.restart_count == b.restart_count && a.attempt == b.attempt;
}

// The latest epoch that agents may have heard of. A new use of a name has no epoch yet.
Epoch LatestOf(const JobState& state) {
  return state.epoch() == Epoch() ? state.highest_epoch() : state.epoch();
}

// Every epoch of this use of the name is above it. REQUIRES: one has begun.
Epoch FloorOf(const JobState& state) { return Epoch(state.epoch().value() - state.attempt() - 1); }

// A record tells times in whole milliseconds.
constexpr absl::Duration kRounding = absl::Milliseconds(50);

bool IsAwaited(const JobState& state, Incarnation incarnation) {
  return std::any_of(state.nodes().begin(), state.nodes().end(), [&](const auto& entry) {
    return entry.second.incarnation == incarnation && entry.second.away;
  });
}

}  // namespace

void Invariants::OnJoin(MemberId id, Incarnation incarnation, const rendezvous::Hello& hello) {
  joined_[id] = {incarnation, hello, faithful_.erase(incarnation) > 0};
}

void Invariants::OnItem(const rendezvous::Outbox::Item& item) {
  // A restarted daemon's words to members that are not back reach no agent.
  const auto found = joined_.find(item.to);
  if (found == joined_.end()) return;
  Expect(over_.count(item.to) == 0, "a word to a stream that is over");
  if (const auto* status = std::get_if<absl::Status>(&item.what)) {
    over_.insert(item.to);
    // The agents here kill workers that their graces do not end, and lose their lease before they
    // are slow.
    Expect(!absl::StrContains(status->message(), "did not stop the workers"),
           "a node that was still allowed to stop its workers was given up");
    return;
  }
  const Joined& to = found->second;
  const auto& event = std::get<rendezvous::DaemonEvent>(item.what);
  if (const auto* assignment = std::get_if<Assignment>(&event.body)) {
    OnAssignment(to, item.to, event.epoch, *assignment);
  } else if (const auto* welcome = std::get_if<rendezvous::Welcome>(&event.body)) {
    Expect(welcome->resumed || !to.is_expected, "a node came back in time and lost its place");
    if (welcome->resumed) return;
    ++newcomers_[to.hello.job_id];
    told_[to.hello.job_id].seats.erase(to.incarnation);
  } else if (const auto* close = std::get_if<rendezvous::Close>(&event.body)) {
    if (close->outcome != rendezvous::Outcome::kSucceeded) return;
    const auto latest = latest_.find(to.hello.job_id);
    Expect(latest != latest_.end(), "a success without an epoch");
    const Formation& formation = formations_.at(latest->second);
    Expect(formation.succeeded == formation.first.group_world_size,
           "a success that not every node had");
  }
}

void Invariants::OnTold(MonotonicTime now, MemberId to, const rendezvous::DaemonEvent& event) {
  if (!std::holds_alternative<Assignment>(event.body)) return;
  const int64_t serial = serials_.at(to);
  Formation& formation = formations_.at(serial);
  if (std::exchange(formation.is_told, true)) return;
  ++told_counts_[formation.run];
  int64_t& latest = latest_told_[formation.run];
  if (latest > serial) {  // One write of the journal let both go.
    formation.superseded_at = now;
    return;
  }
  if (latest > 0) formations_.at(latest).superseded_at = now;
  latest = remembered_[formation.run] = serial;
  const Epoch floor(formation.epoch.value() - formation.first.attempt - 1);
  failures_[{formation.run, floor}].told = formation.first.restart_count;
}

void Invariants::BeginEpoch(const rendezvous::Hello& hello, Epoch epoch,
                            const Assignment& assignment) {
  Told& told = told_[hello.job_id];
  Expect(epoch > told.epoch, "an epoch did not rise");
  CheckWhole(told);
  Expect(assignment.group_world_size <= hello.nodes_max, "more than nodes_max members");
  Expect(assignment.group_world_size >= hello.nodes_min, "fewer than nodes_min members");
  told.epoch = epoch;
  told.next_rank = told.next_global_rank = 0;
  told.roles.clear();
  told.serial = latest_[hello.job_id] = ++last_serial_;
  Formation& formation = formations_[last_serial_];
  formation.run = hello.job_id;
  formation.epoch = epoch;
  formation.first = assignment;
  new_epochs_.insert(hello.job_id);
}

void Invariants::OnAssignment(const Joined& to, MemberId id, Epoch epoch,
                              const Assignment& assignment) {
  const std::string& run = to.hello.job_id;
  if (epoch != told_[run].epoch) BeginEpoch(to.hello, epoch, assignment);
  Told& told = told_.at(run);
  serials_[id] = told.serial;
  Formation& formation = formations_.at(told.serial);
  Expect(IsOneStory(assignment, formation.first),
         "two nodes of one epoch were told different things");
  const auto [given, is_new] = formation.given.try_emplace(to.incarnation, assignment);
  if (!is_new) return Expect(IsSame(given->second, assignment), "a node was told two ranks");
  Expect(assignment.group_rank == told.next_rank, "group ranks not dense or not unique");
  Expect(assignment.first_global_rank == told.next_global_rank, "global ranks overlap or gape");
  ++told.next_rank;
  told.next_global_rank += to.hello.local_world_size;
  Told::Role& role = told.roles[to.hello.role];
  Expect(role.next_rank == 0 || role.world_size == assignment.role_world_size,
         "two nodes of one role were told different sizes of it");
  Expect(assignment.first_role_rank == role.next_rank, "ranks in a role overlap or gape");
  role.next_rank += to.hello.local_world_size;
  role.world_size = assignment.role_world_size;
}

void Invariants::CheckWhole(const Told& told) const {
  if (told.serial == 0) return;
  const Assignment& first = formations_.at(told.serial).first;
  Expect(told.next_rank == first.group_world_size, "a rank of the epoch was given to nobody");
  Expect(told.next_global_rank == first.world_size, "the world size is not the sum of the nodes'");
  for (const auto& [name, role] : told.roles) {
    Expect(role.next_rank == role.world_size, "a role's size is not the sum of its nodes'");
  }
}

// Survivors of the epoch before keep their seats, and ranks are in the order of seats.
void Invariants::CheckSeats(const Job& job, Told* told) const {
  std::map<int, const Node*> by_rank;
  for (const auto& [id, node] : job.state().nodes()) {
    if (node.is_member()) by_rank[node.group_rank] = &node;
  }
  std::map<Incarnation, int> seats;
  int last = -1;
  for (const auto& [rank, node] : by_rank) {
    Expect(node->seat > last, "ranks are not in the order of seats");
    last = seats[node->incarnation] = node->seat;
    const auto before = told->seats.find(node->incarnation);
    Expect(before == told->seats.end() || before->second == last, "a survivor lost its seat");
  }
  told->seats = std::move(seats);
}

// Checks the state right after an epoch has begun.
void Invariants::CheckNewEpoch(MonotonicTime daemon_now, const Job& job, const Told& told) const {
  const JobState& state = job.state();
  const JobPolicy& policy = job.policy();
  if (state.phase() != Phase::kRunning) return;
  Expect(state.budget().CountedAt(daemon_now, policy.restart_window) <= policy.max_restarts,
         "the budget is overdrawn");
  Expect(policy.max_stuck_restarts == 0 || state.budget().stuck_count < policy.max_stuck_restarts,
         "an epoch begins though no step is made any more");
  Expect(state.bench().empty() || state.member_count() == policy.nodes_max,
         "a seat stayed empty beside a node that is ready");
  Expect(state.old_workers_count() == 0 || daemon_now >= state.old_workers_until(),
         "an epoch begins beside workers of an older one, on a node that is here");
  // A node that came later may have made the excluded node superfluous; that does not put it out
  // again.
  int excluded = 0;
  int newcomers = 0;
  for (const auto& [id, node] : state.nodes()) {
    if (!node.is_member()) continue;
    if (state.conduct().Excluded(daemon_now, KeyOf(node)) != nullptr) {
      ++excluded;
    } else if (told.seats.count(node.incarnation) == 0) {
      ++newcomers;
    }
  }
  Expect(excluded == 0 || state.member_count() - excluded - newcomers < policy.nodes_min,
         "an excluded node takes part without need");
}

// Checks that the state counts as many failures as the world, whatever the daemon's clock says.
void Invariants::CountFailures(MonotonicTime now, MonotonicTime daemon_now, const Job& job) {
  const JobState& state = job.state();
  if (state.epoch() == Epoch()) return;
  Failures& failures = failures_[{job.id(), FloorOf(state)}];
  const auto count = static_cast<size_t>(state.failure_count());
  Expect(failures.at.size() <= count, "a failure was forgotten");
  failures.at.resize(count, now);
  const absl::Duration window = job.policy().restart_window;
  if (window == absl::ZeroDuration()) return;
  const auto within = [&](absl::Duration duration) {
    return std::count_if(failures.at.begin(), failures.at.end(),
                         [&](MonotonicTime at) { return at >= now - duration; });
  };
  const int counted = state.budget().CountedAt(daemon_now, window);
  Expect(
      within(window - kRounding) <= counted && counted <= within(window + kRounding),
      absl::StrCat(job.id(), ": ", counted, " failures count within ", absl::FormatDuration(window),
                   ", where ", within(window), " of ", count, " were"));
}

// Checks that a node that comes back by itself is not given up before it could come.
void Invariants::CheckAwaited(const std::string& run, const Job* job) {
  for (auto entry = faithful_.begin(); entry != faithful_.end();) {
    const bool is_of_run = entry->second.first == run;
    if (is_of_run && (job == nullptr || job->closed())) {
      entry = faithful_.erase(entry);
      continue;
    }
    Expect(!is_of_run || IsAwaited(job->state(), entry->first),
           absl::StrCat("a node of ", run, " that was on its way back was given up"));
    ++entry;
  }
}

void Invariants::NoteExclusions(MonotonicTime now, MonotonicTime daemon_now, const Job& job) {
  std::erase_if(exclusions_, [&](const auto& entry) { return entry.first.first == job.id(); });
  if (job.state().epoch() == Epoch()) return;  // Nobody has failed yet.
  auto& exclusions = exclusions_[{job.id(), FloorOf(job.state())}];
  for (const auto& [key, conduct] : job.state().conduct().records) {
    if (conduct.excluded_until > daemon_now) {
      exclusions[key] = now + (conduct.excluded_until - daemon_now);
    }
  }
}

void Invariants::OnDaemonIdle(MonotonicTime now, MonotonicTime daemon_now,
                              const rendezvous::JobTable& table) {
  for (const auto& [run, told] : told_) CheckWhole(told);
  for (const std::string& run : new_epochs_) {
    const Job* job = table.Find(run);
    if (job == nullptr || job->closed()) continue;
    CheckNewEpoch(daemon_now, *job, told_.at(run));
    CheckSeats(*job, &told_.at(run));
  }
  new_epochs_.clear();
  for (const auto& [run, told] : told_) {
    const Job* job = table.Find(run);
    CheckAwaited(run, job);
    if (job == nullptr || job->closed()) continue;
    CountFailures(now, daemon_now, *job);
    NoteExclusions(now, daemon_now, *job);
    CheckCounters(job->state());
    CheckPromptness(daemon_now, *job);
  }
}

void Invariants::NoteSettled(const rendezvous::JobTable& table,
                             const std::set<Incarnation>& faithful) {
  settled_runs_.clear();
  for (const auto& [run, told] : told_) {
    const Job* job = table.Find(run);
    if (job == nullptr || job->closed()) continue;
    const JobState& state = job->state();
    const bool is_running = state.phase() == Phase::kRunning &&
                            state.cause() == rendezvous::Cause::kNone &&
                            formations_.at(told.serial).is_told;
    const bool is_settled =
        is_running &&
        std::all_of(state.nodes().begin(), state.nodes().end(), [&](const auto& entry) {
          return faithful.count(entry.second.incarnation) > 0 &&
                 entry.second.state == NodeState::kRunning;
        });
    if (is_settled) settled_runs_.insert(run);
  }
}

void Invariants::OnDaemonKilled(const rendezvous::JobTable& table,
                                const std::set<Incarnation>& faithful) {
  NoteSettled(table, faithful);
  for (const auto& [run, told] : told_) {
    const Job* job = table.Find(run);
    if (job == nullptr || job->closed()) continue;
    for (const auto& [id, node] : job->state().nodes()) {
      if (faithful.count(node.incarnation) == 0 || !node.is_member()) continue;
      faithful_[node.incarnation] = {run, job->state().epoch()};
    }
  }
  for (const auto& [id, joined] : joined_) over_.insert(id);
  joined_.clear();
  new_epochs_.clear();
}

int64_t Invariants::FindFormation(const std::string& run, Epoch epoch) const {
  for (auto entry = formations_.rbegin(); entry != formations_.rend(); ++entry) {
    if (entry->second.run == run && entry->second.epoch == epoch) return entry->first;
  }
  return 0;
}

// The daemon goes on with `job`.
void Invariants::Restore(const std::string& run, const Job& job, bool is_trusted) {
  const JobState& state = job.state();
  Told& told = told_[run];
  told = Told();
  told.epoch = LatestOf(state);
  told.serial = FindFormation(run, state.epoch());
  Expect(told.serial > 0 || state.epoch() == Epoch(), "an epoch is remembered that never was");
  if (told.serial > 0) {
    const Formation& formation = formations_.at(told.serial);
    told.next_rank = formation.first.group_world_size;
    told.next_global_rank = formation.first.world_size;
    latest_[run] = told.serial;
  }
  for (const auto& [id, node] : state.nodes()) told.seats[node.incarnation] = node.seat;
  if (state.epoch() == Epoch()) return;
  Failures& failures = failures_[{run, FloorOf(state)}];
  const auto count = static_cast<size_t>(state.failure_count());
  Expect(!is_trusted || state.failure_count() >= failures.told, "a restart was not remembered");
  failures.told = std::min(failures.told, state.failure_count());
  if (count < failures.at.size()) failures.at.resize(count);
}

// Exclusions on the disk hold; so may those of a write that was under way.
void Invariants::CheckExclusions(MonotonicTime now, MonotonicTime daemon_now, const Job& job) {
  if (job.state().epoch() == Epoch()) return;
  const Use use(job.id(), FloorOf(job.state()));
  const auto& records = job.state().conduct().records;
  for (const auto& [key, end] : written_[use]) {
    if (end <= now + kRounding) continue;
    const auto found = records.find(key);
    Expect(found != records.end(), "an exclusion is forgotten");
    const MonotonicTime restored = now + (found->second.excluded_until - daemon_now);
    const auto latest = exclusions_[use].find(key);
    Expect(restored > end - kRounding, "an exclusion ends too early");
    Expect(latest == exclusions_[use].end() || restored < latest->second + kRounding,
           "an exclusion ends too late");
  }
}

void Invariants::OnDaemonStarted(MonotonicTime now, MonotonicTime daemon_now,
                                 const rendezvous::JobTable& table, bool is_trusted) {
  std::vector<std::string> runs;
  for (const auto& [run, told] : told_) runs.push_back(run);
  told_.clear();
  if (!is_trusted) remembered_.clear();
  for (const std::string& run : runs) {
    const Job* job = table.Find(run);
    if (const auto remembered = remembered_.find(run); remembered != remembered_.end()) {
      const Formation& formation = formations_.at(remembered->second);
      Expect(job != nullptr, "a run was forgotten");
      Expect(LatestOf(job->state()) >= formation.epoch, "an epoch that was told of is forgotten");
    }
    if (!is_trusted || job == nullptr) {
      // The floor of a use that was forgotten may be the floor of a later use.
      std::erase_if(failures_, [&](const auto& entry) {
        return entry.first.first == run && (job == nullptr || job->state().epoch() == Epoch() ||
                                            entry.first.second != FloorOf(job->state()));
      });
    }
    if (job == nullptr) continue;
    Restore(run, *job, is_trusted);
    if (is_trusted && !job->closed()) CheckExclusions(now, daemon_now, *job);
  }
  std::erase_if(faithful_, [&](const auto& entry) {
    const auto& [run, epoch] = entry.second;
    const Job* job = table.Find(run);
    // An epoch that the disk does not have yet gave its places to nobody.
    return !is_trusted || job == nullptr || job->state().epoch() != epoch ||
           !IsAwaited(job->state(), entry.first);
  });
}

bool Invariants::MayRun(MonotonicTime now, int64_t serial, absl::Duration lease,
                        MonotonicTime awake_since) const {
  return now <= std::max(formations_.at(serial).superseded_at, awake_since) + lease + kDying;
}

}  // namespace convene::sim
