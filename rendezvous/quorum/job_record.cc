#include "rendezvous/quorum/job_record.h"

#include <algorithm>
#include <utility>

#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

// Moves all times to a clock that is ahead by `shift`.
void Move(absl::Duration shift, RestartBudget* budget, Conduct* conduct) {
  for (MonotonicTime& at : budget->failed_at) at = at + shift;
  for (auto& [key, record] : conduct->records) {
    for (ConductRecord::Offence& offence : record.offences) offence.at = offence.at + shift;
    record.excluded_until = record.excluded_until + shift;
  }
  for (FailureRecord& failure : conduct->last_failures) failure.at = failure.at + shift;
}

}  // namespace

RecordMark MarkOf(const JobState& state) {
  return {.decided = {state.phase(), state.epoch(), state.cause(), state.stop_kind(),
                      state.failure_count(), state.conduct().changes},
          .learnt = {state.member_count(), state.succeeded_count()}};
}

bool IsWorthRecording(const JobState& state) {
  return state.highest_epoch() != Epoch() || state.phase() == Phase::kClosed;
}

void JobState::Record(MonotonicTime now, JobRecord* record) const {
  static_cast<JobFacts&>(*record) = facts_;
  record->members.clear();
  for (const auto& [id, node] : nodes_) {
    if (!node.is_member() || node.is_cut_off) continue;
    record->members.push_back({node, node.state == NodeState::kRunning});
  }
  record->taken_at = now;
  record->ran = (facts_.phase == Phase::kRunning ? now : waiting_since_) - began_at_;
}

JobState::JobState(MonotonicTime now, const JobRecord& record, MemberId first_id)
    : facts_(record),
      began_at_(now - record.ran -
                (record.phase == Phase::kRunning ? record.age : absl::ZeroDuration())),
      waiting_since_(now),
      forming_since_(now),
      last_word_(now),
      closed_at_(now) {
  Move(now - record.taken_at - record.age, &facts_.budget, &facts_.conduct);
  MemberId id = first_id;
  for (const MemberRecord& member : record.members) {
    Node node;
    static_cast<Member&>(node) = member;
    node.id = id;
    node.heard_at = now;
    node.away = true;
    // A member that was ready owes its Ready again: it said Ready to the daemon that is gone.
    node.state = NodeState::kRunning;
    node.said_ready = !member.takes_part;
    if (node.node_rank >= 0) by_node_rank_[node.node_rank] = id;
    by_process_[{node.host, node.node_rank, node.incarnation}] = id;
    lease_watch_ = std::min(lease_watch_, now + node.lease);
    longest_lease_ = std::max(longest_lease_, node.lease);
    Count(nodes_.emplace(id, std::move(node)).first->second, +1);
    id = id.Next();
  }
  // As always, the next epoch forms when every member has said Ready.
  if (facts_.phase == Phase::kForming && running_count_ > 0) facts_.phase = Phase::kStopping;
}

void JobState::Resume(MonotonicTime now, MemberId old, MemberId id, const Hello& hello) {
  auto entry = nodes_.extract(old);
  CONVENE_CHECK(!entry.empty() && entry.mapped().is_member() && Find(id) == nullptr);
  Node& node = entry.mapped();
  Count(node, -1);
  node.id = id;
  node.joined_at = node.heard_at = now;
  node.hello_said_at = hello.said_at;
  node.role = hello.role;  // a journal of before roles knows none
  node.may_host = hello.may_host;
  stop_limit_ = std::max(stop_limit_, hello.stop_limit);
  node.away = node.is_cut_off = false;
  Count(node, +1);
  if (node.node_rank >= 0) by_node_rank_[node.node_rank] = id;
  by_process_[{node.host, node.node_rank, node.incarnation}] = id;
  if (node.rival != MemberId()) nodes_.at(node.rival).rival = id;
  entry.key() = id;
  nodes_.insert(std::move(entry));
}

bool JobState::KeepsPlace(MemberId id) const {
  const Node& node = nodes_.at(id);
  return facts_.phase == Phase::kRunning && facts_.cause == Cause::kNone &&
         node.state == NodeState::kRunning && node.succeeded && !node.is_leaving &&
         node.rival == MemberId();
}

void JobState::CutOff(MemberId id) {
  CONVENE_CHECK(KeepsPlace(id));
  Node& node = nodes_.at(id);
  Count(node, -1);
  node.away = node.is_cut_off = true;
  Count(node, +1);
}

void JobState::RenewAway(MonotonicTime now) {
  // Until now nobody could be heard: the end of that silence counts as a word.
  Hear(now);
  lease_watch_ = MonotonicTime::InfiniteFuture();
  for (auto& [id, node] : nodes_) {
    if (node.away) node.heard_at = now;
    lease_watch_ = std::min(lease_watch_, node.heard_at + node.lease);
  }
}

}  // namespace convene::rendezvous
