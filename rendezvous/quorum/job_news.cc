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
  outbox->log.push_back(
      {absl::StrCat("job ", id_, is_decision ? " " : ": ", news.text), news.is_detail});
  // Waits say only why nothing is decided yet: they are for the log.
  if (news.is_detail && is_decision) return;
  chronicle_.AddEvent(now, news.decided.value_or(state_.epoch()), news.kind, news.text);
}

Job::Before Job::Look(MonotonicTime now, const Node& node) const {
  return {state_.cause_text(), state_.conduct().Excluded(now, KeyOf(node)) != nullptr};
}

void Job::NoteChanges(MonotonicTime now, const Node& node, const Before& before,
                      std::vector<std::string> places, const WorkerFailure* failure,
                      Outbox* outbox) {
  const bool is_broken = state_.cause() == Cause::kFailure || state_.cause() == Cause::kLoss;
  const bool is_cause = is_broken && state_.cause_text() != before.cause;
  if (is_cause) {
    chronicle_.AddIncident(now, state_.epoch(), state_.cause_text(), node.host, std::move(places));
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
  std::vector<std::tuple<int64_t, int, std::string>> ranks;
  for (const auto& [id, node] : state_.nodes()) {
    if (node.state != NodeState::kRunning) continue;
    for (const RankProgress& rank : node.ranks) {
      const int number = node.first_global_rank + rank.local_rank;
      ranks.emplace_back(
          rank.step, number,
          absl::StrCat("rank ", number, " on ", node.host, ": step ", rank.step, ", ", rank.phase));
    }
  }
  std::sort(ranks.begin(), ranks.end());
  if (ranks.size() > Incident::kMostPlaces) ranks.resize(Incident::kMostPlaces);
  std::vector<std::string> texts;
  for (auto& [step, number, text] : ranks) texts.push_back(std::move(text));
  return texts;
}

// Of several reasons the slowest; "": the node is none.
std::string Job::WhyStraggler(int64_t group_rank) const {
  for (const Straggler& straggler : judge_.stragglers()) {
    if (straggler.node != group_rank || straggler.kind == StragglerKind::kLink) continue;
    return absl::StrFormat("straggler: slow %s, by %.0f %%: %s", StragglerWord(straggler.kind),
                           100 * straggler.slower_by, straggler.why);
  }
  return "";
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
    const auto found =
        std::find_if(state_.nodes().begin(), state_.nodes().end(), [&](const auto& entry) {
          return entry.second.is_member() && entry.second.group_rank == straggler.node;
        });
    if (found == state_.nodes().end()) continue;
    const bool is_link = straggler.kind == StragglerKind::kLink;
    const std::string name =
        straggler.rank < 0 ? "the network between the nodes"
        : straggler.kind == StragglerKind::kNode
            ? NodeName(found->second)
            : absl::StrCat("rank ", straggler.rank, " on ", NodeName(found->second));
    const std::string text =
        absl::StrFormat("%s: slow %s, by %.0f %%: %s", name, StragglerWord(straggler.kind),
                        100 * straggler.slower_by, straggler.why);
    if (policy_.excludes_stragglers && !is_link) {
      state_.SetStraggler(found->first, WhyStraggler(straggler.node));
    }
    Tell(now,
         {change.is_found ? "straggler found" : "straggler gone",
          change.is_found
              ? text
              : absl::StrCat(name, ": no longer a slow ", StragglerWord(straggler.kind))},
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
