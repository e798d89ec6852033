// Job's functions for people: events, incidents, stragglers, the status.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rendezvous/quorum/describe.h"
#include "rendezvous/quorum/job.h"

namespace convene::rendezvous {

void Job::Tell(MonotonicTime now, const News& news, Outbox* outbox) {
  const bool is_decision = news.decided.has_value();
  outbox->log.push_back({absl::StrCat("job ", id_, is_decision ? " " : ": ", news.text),
                         news.is_detail, news.is_untold});
  // Waits say only why nothing is decided yet: they are for the log.
  if (news.is_detail && is_decision) return;
  chronicle_.AddEvent(now, news.decided.value_or(state_.epoch()), news.kind, news.text);
}

Job::Before Job::Look(MonotonicTime now, const Node& node) const {
  return {state_.cause_text(), state_.conduct().Excluded(now, KeyOf(node)) != nullptr};
}

void Job::NoteChanges(MonotonicTime now, const Node& node, const Before& before,
                      std::vector<std::string> places, const WorkerFailure* failure, bool is_unfit,
                      Outbox* outbox) {
  const bool is_broken = state_.cause() == Cause::kFailure || state_.cause() == Cause::kLoss;
  const bool is_cause = is_broken && state_.cause_text() != before.cause;
  if (is_cause) {
    chronicle_.AddIncident(now, state_.epoch(), state_.cause_text(), node.host, std::move(places),
                           is_unfit);
  }
  if (failure != nullptr && is_broken) chronicle_.AddFailure(state_.epoch(), *failure, is_cause);
  if (is_cause && failure != nullptr) {
    Tell(now, {"failure", state_.cause_text(), /*is_detail=*/true}, outbox);
  }
  const ConductRecord* excluded = state_.conduct().Excluded(now, KeyOf(node));
  if (before.was_excluded || excluded == nullptr) return;
  Tell(now,
       {"node excluded", absl::StrCat(NodeName(node), " is excluded for ",
                                      absl::FormatDuration(absl::Ceil(
                                          excluded->excluded_until - now, absl::Seconds(1))),
                                      ": ", excluded->why)},
       outbox);
}

// The ranks that are furthest behind come first.
std::vector<std::string> Job::Places() const {
  const bool is_broken = state_.cause() == Cause::kFailure || state_.cause() == Cause::kLoss;
  if (is_broken) return {};
  std::vector<std::tuple<int64_t, int, const Node*, const RankProgress*>> ranks;
  for (const auto& [id, node] : state_.nodes()) {
    if (node.state != NodeState::kRunning) continue;
    for (const RankProgress& rank : node.ranks) {
      ranks.emplace_back(rank.step, node.first_global_rank + rank.local_rank, &node, &rank);
    }
  }
  const size_t told = std::min(ranks.size(), Incident::kMostPlaces);
  std::partial_sort(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(told), ranks.end());
  ranks.resize(told);
  std::vector<std::string> texts;
  for (const auto& [step, number, node, rank] : ranks) {
    texts.push_back(absl::StrCat("rank ", number, " on ", node->host, ": step ", step, ", ",
                                 rank->phase, rank->awaits.empty() ? "" : ", ", rank->awaits));
  }
  return texts;
}

// Of several reasons the slowest; "": the node is none.
std::string Job::WhyStraggler(int64_t group_rank) const {
  for (const Straggler& straggler : judge_.stragglers()) {
    if (straggler.node != group_rank || straggler.kind == StragglerKind::kLink) continue;
    return absl::StrCat("straggler: ", StragglerText(straggler));
  }
  return "";
}

// "rank 6 on b: slow rank, by 30 %: it works ...".
std::string Job::StragglerText(const Straggler& straggler) const {
  return absl::StrFormat("%s: slow %s, by %.0f %%: %s", StragglerName(straggler),
                         StragglerWord(straggler.kind), 100 * straggler.slower_by, straggler.why);
}

std::string Job::StragglerName(const Straggler& straggler) const {
  if (straggler.rank < 0) return "the network between the nodes";
  const Node* const node = MemberAt(straggler.node);
  const std::string name = node == nullptr ? "a node that is gone" : NodeName(*node);
  if (straggler.kind == StragglerKind::kNode) return name;
  return absl::StrCat("rank ", straggler.rank, " on ", name);
}

const Node* Job::MemberAt(int64_t group_rank) const {
  for (const auto& [id, node] : state_.nodes()) {
    if (node.is_member() && node.group_rank == group_rank) return &node;
  }
  return nullptr;
}

void Job::JudgeSteps(MonotonicTime now, const Node& node, const Heartbeat& heartbeat,
                     Outbox* outbox) {
  if (heartbeat.ranks.empty()) return;
  for (const RankProgress& rank : heartbeat.ranks) {
    if (rank.local_rank < 0 || rank.local_rank >= node.local_world_size) continue;
    judge_.Hear(node.first_global_rank + rank.local_rank, node.group_rank, rank);
  }
  for (const StragglerJudge::Change& change : judge_.Judge(now)) {
    const Straggler& straggler = change.straggler;
    const Node* const its_node = MemberAt(straggler.node);
    if (its_node == nullptr) continue;
    if (policy_.excludes_stragglers && straggler.kind != StragglerKind::kLink) {
      state_.SetStraggler(its_node->id, WhyStraggler(straggler.node));
    }
    Tell(now,
         {change.is_found ? "straggler found" : "straggler gone",
          change.is_found ? StragglerText(straggler)
                          : absl::StrCat(StragglerName(straggler), ": no longer a slow ",
                                         StragglerWord(straggler.kind))},
         outbox);
  }
}

JobView Job::View(MonotonicTime now, bool with_news) const {
  JobView view = Describe(now, id_, state_, policy_, decision_.why);
  if (with_news) chronicle_.Describe(&view);
  for (const Straggler& straggler : judge_.stragglers()) {
    const auto node = std::find_if(
        view.nodes.begin(), view.nodes.end(),
        [&](const NodeView& candidate) { return candidate.group_rank == straggler.node; });
    const bool is_known = straggler.rank >= 0 && node != view.nodes.end();
    view.stragglers.push_back({.kind = StragglerWord(straggler.kind),
                               .rank = straggler.rank,
                               .host = is_known ? node->host : "",
                               .slower_by = straggler.slower_by,
                               .why = straggler.why,
                               .since = now - straggler.since});
  }
  return view;
}

}  // namespace convene::rendezvous
