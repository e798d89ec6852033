#include "rendezvous/quorum/job_state.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

// The longest time from the SIGKILL that ends old workers to their node's Ready.
constexpr absl::Duration kKilledToReady = absl::Seconds(2);

std::string FailureText(const Node& node, const WorkerFailure& failure) {
  return absl::StrCat("rank ", failure.global_rank, " on ", NodeName(node), ": ", failure.why);
}

}  // namespace

std::string DepartureText(const Node& node, JobState::Departure departure) {
  using Departure = JobState::Departure;
  if (departure == Departure::kLeft || departure == Departure::kUnfit) {
    return absl::StrCat(NodeName(node), " left");
  }
  const bool is_back = departure == Departure::kOutdated;
  return absl::StrCat(NodeName(node), is_back ? " is back, but not in its place" : " is lost");
}

NodeKey KeyOf(const Node& node) { return {node.host, node.node_rank}; }

std::string NodeName(const Node& node) {
  if (node.node_rank < 0) return node.host;
  return absl::StrCat(node.host, " (node rank ", node.node_rank, ")");
}

const Node* JobState::Find(MemberId id) const {
  const auto found = nodes_.find(id);
  return found == nodes_.end() ? nullptr : &found->second;
}

const Node* JobState::FindNodeRank(int node_rank) const {
  const auto found = by_node_rank_.find(node_rank);
  return found == by_node_rank_.end() ? nullptr : Find(found->second);
}

const Node* JobState::FindProcess(const std::string& host, int node_rank,
                                  Incarnation incarnation) const {
  const auto found = by_process_.find({host, node_rank, incarnation});
  return found == by_process_.end() ? nullptr : Find(found->second);
}

// The caller changes a node between Count(node, -1) and Count(node, +1).
void JobState::Count(const Node& node, int sign) {
  if (node.state == NodeState::kReady) ready_count_ += sign;
  if (node.state == NodeState::kJoining) joining_count_ += sign;
  if (node.state == NodeState::kJoining && node.has_workers) old_workers_count_ += sign;
  if (node.state == NodeState::kRunning) running_count_ += sign;
  if (node.is_member() && !node.is_cut_off) member_count_ += sign;
  if (node.away && !node.is_cut_off) away_count_ += sign;
  const auto list = [&](std::set<MemberId>& nodes) {
    sign > 0 ? static_cast<void>(nodes.insert(node.id)) : static_cast<void>(nodes.erase(node.id));
  };
  if (node.state == NodeState::kReady && !node.is_member()) list(bench_);
  if (node.state == NodeState::kCooling) list(cooling_);
}

void JobState::Enter(Node& node, NodeState state) {
  Count(node, -1);
  node.state = state;
  Count(node, +1);
}

// Draws the consequences that follow from the counters alone.
void JobState::Settle(MonotonicTime now, int nodes_min) {
  if (facts_.phase == Phase::kStopping && running_count_ == 0) {
    facts_.phase = Phase::kForming;
    forming_since_ = now;
  }
  if (ready_count_ < nodes_min) {
    minimum_since_.reset();
  } else if (!minimum_since_.has_value()) {
    minimum_since_ = now;
  }
  if (bench_.empty()) admission_.Clear();
}

bool JobState::Break(MonotonicTime now, Cause cause, std::string text) {
  if (facts_.phase != Phase::kRunning && facts_.phase != Phase::kStopping) return false;
  if (facts_.cause == Cause::kFailure || facts_.cause == Cause::kLoss || facts_.cause == cause)
    return false;
  facts_.cause = cause;
  facts_.failure.reset();
  facts_.cause_text = std::move(text);
  if (cause != Cause::kMembership) facts_.conduct.Remember(now, facts_.epoch, facts_.cause_text);
  return true;
}

bool JobState::loses_daemon() const {
  return ends_soon_ && absl::c_none_of(nodes_, [&](const auto& entry) {
           return MayHostNext(entry.second) && !entry.second.away;
         });
}

MonotonicTime JobState::ExcludedUntil(MemberId id) const {
  const auto record = facts_.conduct.records.find(KeyOf(nodes_.at(id)));
  return record == facts_.conduct.records.end() ? MonotonicTime() : record->second.excluded_until;
}

void JobState::EnterReady(MonotonicTime now, Node& node) {
  const bool is_excluded = facts_.conduct.Excluded(now, KeyOf(node)) != nullptr;
  Enter(node, is_excluded ? NodeState::kCooling : NodeState::kReady);
  if (!is_excluded && !node.is_member()) admission_.Arrive(now);
}

bool JobState::WaitsForWord(MonotonicTime now, absl::Duration patience) {
  if (!AllSilent(now)) return false;
  // An agent that claims a node's rank reached this daemon, and waits for that node's lease.
  const auto is_contested = [](const auto& entry) { return entry.second.rival != MemberId(); };
  if (std::any_of(nodes_.begin(), nodes_.end(), is_contested)) return false;
  if (!silent_until_.has_value() || now - *silent_until_ > kAsleep) {
    silent_until_ = now + std::max(patience, longest_lease_);
  }
  lease_watch_ = *silent_until_;
  return now < *silent_until_;
}

absl::Duration JobState::Hear(MonotonicTime now) {
  const bool all_were_silent = AllSilent(now);
  silent_until_.reset();
  const absl::Duration silence = now - std::exchange(last_word_, now);
  if (!all_were_silent) return absl::ZeroDuration();
  // A word that is only late, from a node under load, hides no more than what is beyond the usual
  // time between two words: else a dead node's lease would begin anew with each late word.
  const absl::Duration hidden =
      silence < longest_lease_ ? silence - longest_lease_ / 3 : absl::InfiniteDuration();
  lease_watch_ = MonotonicTime::InfiniteFuture();
  for (auto& [id, node] : nodes_) {
    node.heard_at = std::min(node.heard_at + hidden, now);
    lease_watch_ = std::min(lease_watch_, node.heard_at + node.lease);
  }
  old_workers_until_ = old_workers_until_ + silence;
  // A wait that began within the silence begins now.
  for (MonotonicTime* since : {&began_at_, &waiting_since_, &forming_since_}) {
    *since = std::min(*since + silence, now);
  }
  if (minimum_since_.has_value()) minimum_since_ = std::min(*minimum_since_ + silence, now);
  return silence;
}

void JobState::Join(MonotonicTime now, MemberId id, Incarnation incarnation, const Hello& hello,
                    MemberId rival, int nodes_min) {
  CONVENE_CHECK(facts_.phase != Phase::kClosed && Find(id) == nullptr);
  // The first node that comes back to an empty job gets the whole join timeout.
  if (nodes_.empty()) waiting_since_ = forming_since_ = now;
  Node node;
  node.id = id;
  node.incarnation = incarnation;
  node.host = hello.host;
  node.node_rank = hello.node_rank;
  node.local_world_size = hello.local_world_size;
  node.role = hello.role;
  node.topology = hello.topology;
  node.lease = hello.lease;
  node.joined_at = now;
  node.heard_at = now;
  node.hello_said_at = hello.said_at;
  node.has_workers = hello.has_workers;
  node.may_host = hello.may_host;
  if (KeyOf(node) == last_departed_) last_departure_.clear();
  stop_limit_ = std::max(stop_limit_, hello.stop_limit);
  longest_lease_ = std::max(longest_lease_, hello.lease);
  if (hello.has_workers) {
    // Where an epoch has begun, the agent kills the old workers before the lease of its old stream
    // ends. Where none has, the daemon lost its memory: no node waits to go on, and they may save.
    const bool may_save = facts_.epoch == Epoch();
    if (old_workers_count_ == 0) old_workers_until_ = now;
    old_workers_until_ = std::max(
        old_workers_until_, now + (may_save ? hello.stop_limit : hello.lease + kKilledToReady));
  }
  node.rival = rival;
  if (rival != MemberId()) {
    node.state = NodeState::kContesting;
    nodes_.at(rival).rival = id;
  } else if (hello.node_rank >= 0) {
    by_node_rank_[hello.node_rank] = id;
  }
  by_process_[{hello.host, hello.node_rank, incarnation}] = id;
  facts_.highest_epoch = std::max(facts_.highest_epoch, hello.last_epoch);
  lease_watch_ = std::min(lease_watch_, now + hello.lease);
  Count(nodes_.emplace(id, std::move(node)).first->second, +1);
  Settle(now, nodes_min);
}

bool JobState::ApplyReady(MonotonicTime now, Node& node, Epoch epoch, const Ready& ready) {
  if (node.is_member() && epoch != facts_.epoch) return false;
  node.store = ready;
  node.said_ready = true;
  if (node.state == NodeState::kContesting) return false;
  if (facts_.phase == Phase::kRunning && node.is_member()) {
    Break(now, Cause::kMembership, absl::StrCat(NodeName(node), " stopped its workers by itself"));
  }
  // A repeated Ready changes nothing.
  if (node.state == NodeState::kReady || node.state == NodeState::kCooling) return false;
  if (!node.straggler_why.empty()) {
    facts_.conduct.Exclude(now, KeyOf(node), std::exchange(node.straggler_why, ""));
  }
  EnterReady(now, node);
  return true;
}

bool JobState::ApplyLeaving(MonotonicTime now, Node& node, const Leave& leave) {
  if (node.state != NodeState::kRunning || node.is_leaving) return false;
  node.is_leaving = true;
  return Break(now, Cause::kLoss,
               absl::StrCat(DepartureText(node, Departure::kLeft), ": ", leave.why));
}

bool JobState::ApplyFailure(MonotonicTime now, const Node& node, Epoch epoch,
                            const WorkerFailure& failure) {
  if (node.state != NodeState::kRunning || epoch != facts_.epoch) return false;
  const Cause before = facts_.cause;
  const bool is_one_too_many = facts_.phase == Phase::kRunning && !failure.costs_budget &&
                               facts_.vain_epochs >= kMostVainEpochs &&
                               now - began_at_ < kQuickEpoch;
  if (is_one_too_many) {
    Break(now, Cause::kFailure,
          absl::StrCat(FailureText(node, failure), ", ", facts_.vain_epochs + 1,
                       " times in a row within ", absl::FormatDuration(kQuickEpoch),
                       " and with the same nodes, which counts as a failure"));
  } else {
    Break(now, failure.costs_budget ? Cause::kFailure : Cause::kMembership,
          FailureText(node, failure));
  }
  if (facts_.cause == before) return false;
  if (facts_.cause == Cause::kFailure) {
    facts_.budget.Fail(now);
    Blame(now, KeyOf(node), facts_.cause_text);
  }
  facts_.failure = failure;
  return true;
}

JobState::Effect JobState::Apply(MonotonicTime now, MemberId id, Epoch epoch,
                                 const AgentEvent& event, int nodes_min) {
  Node& node = nodes_.at(id);
  node.heard_at = now;
  Effect effect;
  if (const auto* ready = std::get_if<Ready>(&event)) {
    effect.changed = ApplyReady(now, node, epoch, *ready);
  } else if (const auto* failure = std::get_if<WorkerFailure>(&event)) {
    effect.changed = ApplyFailure(now, node, epoch, *failure);
  } else if (const auto* leave = std::get_if<Leave>(&event)) {
    effect.changed = ApplyLeaving(now, node, *leave);
  } else if (std::holds_alternative<WorkersSucceeded>(event)) {
    if (node.state == NodeState::kRunning && epoch == facts_.epoch && !node.succeeded) {
      node.succeeded = true;
      ++facts_.succeeded_count;
      effect.changed = true;
    }
  } else if (const auto* heartbeat = std::get_if<Heartbeat>(&event)) {
    if (node.state == NodeState::kRunning && epoch == facts_.epoch &&
        heartbeat->progress.has_value()) {
      node.progress = heartbeat->progress;
      facts_.budget.Progress(heartbeat->progress->step);
      if (!heartbeat->ranks.empty()) node.ranks = heartbeat->ranks;
    }
    if (node.state == NodeState::kJoining && epoch > Epoch() && !node.told_to_stop) {
      node.told_to_stop = true;
      effect.tell_to_stop = true;
    }
  }
  if (effect.changed) Settle(now, nodes_min);
  return effect;
}

void JobState::Remove(MonotonicTime now, MemberId id, Departure departure, const std::string& why,
                      int nodes_min) {
  const Node node = nodes_.at(id);
  Count(node, -1);
  nodes_.erase(id);
  by_process_.erase({node.host, node.node_rank, node.incarnation});
  facts_.last_departure_was_leave = departure == Departure::kLeft || departure == Departure::kUnfit;
  if (node.state == NodeState::kContesting) {
    nodes_.at(node.rival).rival = MemberId();
  } else {
    if (node.node_rank >= 0) by_node_rank_.erase(node.node_rank);
    if (node.rival != MemberId()) {
      Node& heir = nodes_.at(node.rival);
      heir.rival = MemberId();
      Enter(heir, NodeState::kJoining);
      if (heir.said_ready) EnterReady(now, heir);
      heir.heard_at = now;
      lease_watch_ = std::min(lease_watch_, now + heir.lease);
      by_node_rank_[heir.node_rank] = heir.id;
    }
  }
  // A member that succeeded, or stopped when told to, owes its epoch nothing any more.
  const std::string text =
      absl::StrCat(DepartureText(node, departure), why.empty() ? "" : ": ", why);
  if (node.state != NodeState::kContesting) {
    last_departure_ = text;
    last_departed_ = KeyOf(node);
  }
  const bool had_stopped = node.succeeded || (node.away && node.said_ready);
  const bool broke =
      node.state == NodeState::kRunning && !had_stopped && Break(now, Cause::kLoss, text);
  JudgeDeparture(now, node, departure, broke, text);
  Settle(now, nodes_min);
}

void JobState::JudgeDeparture(MonotonicTime now, const Node& node, Departure departure, bool broke,
                              const std::string& why) {
  // A running job would have been stopped for this node. Before the first epoch it disturbs no
  // other node.
  const bool came_and_went = node.state != NodeState::kContesting &&
                             node.state != NodeState::kRunning && !node.is_member() &&
                             facts_.epoch != Epoch();
  if (departure == Departure::kUnfit) {
    facts_.conduct.Exclude(now, KeyOf(node), why);
    CoolDown(now, KeyOf(node));
  } else if (departure == Departure::kDropped ||
             (departure == Departure::kLost && (broke || came_and_went))) {
    Blame(now, KeyOf(node), why);
  }
}

void JobState::Blame(MonotonicTime now, const NodeKey& key, const std::string& what) {
  facts_.conduct.Blame(now, key, facts_.epoch, what);
  CoolDown(now, key);
}

void JobState::CoolDown(MonotonicTime now, const NodeKey& key) {
  if (facts_.conduct.Excluded(now, key) == nullptr) return;
  for (auto& [id, node] : nodes_) {
    if (node.state != NodeState::kReady || KeyOf(node) != key) continue;
    Enter(node, NodeState::kCooling);
  }
}

std::vector<MemberId> JobState::Expired(MonotonicTime now) {
  std::vector<MemberId> expired;
  if (now < lease_watch_) return expired;
  if (now - lease_watch_ > kAsleep) {
    for (auto& [id, node] : nodes_) node.heard_at = now;
  }
  lease_watch_ = MonotonicTime::InfiniteFuture();
  for (const auto& [id, node] : nodes_) {
    // A contesting node has no Welcome yet and does not know that it should speak. Its rival's
    // lease bounds its wait.
    if (node.state == NodeState::kContesting) continue;
    const MonotonicTime end = node.heard_at + node.lease;
    if (end <= now) {
      expired.push_back(id);
    } else {
      lease_watch_ = std::min(lease_watch_, end);
    }
  }
  return expired;
}

int JobState::VainEpochs(int next_size) const {
  // Exit code 75 asked for a restart, even if it was counted as a failure in the end.
  const bool was_asked_for = facts_.failure.has_value() && !facts_.failure->costs_budget;
  const bool is_same_group = member_count_ == facts_.epoch_size && next_size == facts_.epoch_size;
  const bool was_quick = waiting_since_ - began_at_ < kQuickEpoch;
  return was_asked_for && is_same_group && was_quick ? facts_.vain_epochs + 1 : 0;
}

void JobState::BeginEpoch(MonotonicTime now, const std::vector<MemberId>& members,
                          const std::vector<int>& seats) {
  CONVENE_CHECK(facts_.phase == Phase::kForming && members.size() == seats.size());
  facts_.vain_epochs = VainEpochs(static_cast<int>(members.size()));
  began_at_ = now;
  facts_.epoch = facts_.highest_epoch = facts_.highest_epoch.Next();
  facts_.phase = Phase::kRunning;
  facts_.cause = Cause::kNone;
  facts_.cause_text.clear();
  facts_.failure.reset();
  minimum_since_.reset();
  last_departure_.clear();
  const std::set<MemberId> chosen(members.begin(), members.end());
  for (auto& [id, node] : nodes_) {
    if (!node.is_member() || chosen.count(id) > 0) continue;
    Count(node, -1);
    node.seat = node.group_rank = -1;
    Count(node, +1);
  }
  int first_global_rank = 0;
  std::map<std::string, int> role_sizes;
  for (size_t i = 0; i < members.size(); ++i) {
    Node& node = nodes_.at(members[i]);
    CONVENE_CHECK(node.state == NodeState::kReady);
    Count(node, -1);
    node.state = NodeState::kRunning;
    node.succeeded = false;
    node.progress.reset();
    node.ranks.clear();
    node.straggler_why.clear();
    node.seat = seats[i];
    node.group_rank = static_cast<int>(i);
    node.first_global_rank = first_global_rank;
    first_global_rank += node.local_world_size;
    node.first_role_rank = role_sizes[node.role];
    role_sizes[node.role] += node.local_world_size;
    Count(node, +1);
  }
  for (const MemberId id : members) {
    Node& node = nodes_.at(id);
    node.role_world_size = role_sizes.at(node.role);
  }
  facts_.epoch_size = static_cast<int>(members.size());
  facts_.succeeded_count = 0;
  CONVENE_CHECK(member_count_ == facts_.epoch_size);
  if (bench_.empty()) admission_.Clear();
}

void JobState::Admit(MonotonicTime now, const std::vector<MemberId>& nodes, int nodes_min) {
  for (const MemberId id : nodes) {
    Node& node = nodes_.at(id);
    CONVENE_CHECK(node.state == NodeState::kCooling);
    Enter(node, NodeState::kReady);
    if (!node.is_member()) admission_.Arrive(now);
  }
  Settle(now, nodes_min);
}

void JobState::BeginStop(MonotonicTime now, StopKind kind) {
  CONVENE_CHECK(facts_.phase == Phase::kRunning || facts_.phase == Phase::kStopping);
  if (facts_.phase == Phase::kRunning) waiting_since_ = now;
  facts_.stop_kind = kind;
  facts_.phase = Phase::kStopping;
  if (running_count_ > 0) return;
  facts_.phase = Phase::kForming;
  forming_since_ = now;
}

void JobState::Close(MonotonicTime now, Outcome outcome) {
  facts_.phase = Phase::kClosed;
  closed_at_ = now;
  facts_.outcome = outcome;
  nodes_.clear();
  by_node_rank_.clear();
  by_process_.clear();
  bench_.clear();
  cooling_.clear();
  admission_.Clear();
  ready_count_ = joining_count_ = running_count_ = member_count_ = away_count_ = 0;
  old_workers_count_ = facts_.succeeded_count = 0;
  lease_watch_ = MonotonicTime::InfiniteFuture();
}

}  // namespace convene::rendezvous
