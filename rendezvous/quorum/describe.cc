#include "rendezvous/quorum/describe.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/ranks.h"

namespace convene::rendezvous {
namespace {

const char* PhaseText(const JobState& state) {
  constexpr const char* kTexts[] = {"forming", "running", "stopping", "failed"};
  static_assert(std::size(kTexts) == static_cast<size_t>(Phase::kClosed) + 1);
  const bool succeeded = state.phase() == Phase::kClosed && state.outcome() == Outcome::kSucceeded;
  return succeeded ? "succeeded" : kTexts[static_cast<size_t>(state.phase())];
}

// Rounded to seconds, for people.
std::string In(MonotonicTime now, MonotonicTime then) {
  return absl::FormatDuration(absl::Ceil(then - now, absl::Seconds(1)));
}

// Describes a ready node. `place`: the number of nodes that came to the bench before it.
void DescribeReady(MonotonicTime now, const JobState& state, const JobPolicy& policy,
                   const Node& node, int place, NodeView* view) {
  view->state = "ready";
  if (node.is_member() || state.phase() != Phase::kRunning) return;
  const int free = policy.nodes_max - state.member_count();
  if (place < free && state.succeeded_count() > 0) {
    view->why = "the job is about to end";
  } else if (place < free) {
    view->why = absl::StrCat("joins at the next epoch, in ",
                             In(now, state.admission().DueAt(policy.admission)));
  } else if (place < free + policy.spares) {
    view->state = "spare";
    view->why = "replaces a node that is lost";
  } else {
    view->state = "waiting";
    view->why =
        absl::StrCat("no seat (members ", state.member_count(), " of ", policy.nodes_max,
                     ", spares ", policy.spares, "); sent away in ",
                     In(now, node.joined_at + policy.join_timeout), " unless one becomes free");
  }
}

void DescribeState(MonotonicTime now, const JobState& state, const JobPolicy& policy,
                   const Node& node, int place, NodeView* view) {
  switch (node.state) {
    case NodeState::kContesting:
      view->state = "joining";
      view->why = absl::StrCat("node rank ", node.node_rank, " is held by ",
                               state.Find(node.rival)->host, ", unless its lease ends");
      return;
    case NodeState::kJoining:
      view->state = "joining";
      if (node.has_workers) view->why = "its workers of an earlier epoch are being stopped";
      return;
    case NodeState::kReady:
      return DescribeReady(now, state, policy, node, place, view);
    case NodeState::kCooling:
      view->state = "cooling down";
      if (const ConductRecord* record = state.conduct().Excluded(now, KeyOf(node))) {
        view->why =
            absl::StrCat("excluded for ", In(now, record->excluded_until), " more: ", record->why);
      }
      return;
    case NodeState::kRunning:
      if (node.away) {
        view->state = "away";
        view->why = node.is_cut_off ? "succeeded; its connection closed, and it is not back yet"
                                    : "not heard of since the daemon was restarted";
        return;
      }
      view->state = node.succeeded ? "succeeded" : "running";
      if (state.phase() == Phase::kStopping && !node.succeeded) view->why = "stopping";
      if (node.is_leaving) view->why = "leaving: its last workers are being stopped";
      return;
  }
}

}  // namespace

JobView Describe(MonotonicTime now, const std::string& job_id, const JobState& state,
                 const JobPolicy& policy, const std::string& why) {
  JobView view;
  view.job_id = job_id;
  view.phase = PhaseText(state);
  view.epoch = state.epoch();
  view.floor = state.floor();
  view.why = why;
  view.restart_count = state.failure_count();
  // Of a job that is over nothing counts any more, and nothing is forgotten.
  if (state.phase() != Phase::kClosed) {
    view.failures_outside_window =
        view.restart_count - state.budget().CountedAt(now, policy.restart_window);
  }
  view.max_restarts = policy.max_restarts;
  view.nodes_min = policy.nodes_min;
  view.nodes_max = policy.nodes_max;
  int place = 0;  // on the bench, which is in the order of ids too
  for (const auto& [id, node] : state.nodes()) {
    NodeView& of_node = view.nodes.emplace_back();
    of_node.host = node.host;
    of_node.agent = AgentIdOf(node.incarnation);
    of_node.node_rank = node.node_rank;
    of_node.local_world_size = node.local_world_size;
    of_node.group_rank = node.state == NodeState::kRunning ? node.group_rank : -1;
    of_node.heard_ago = now - node.heard_at;
    of_node.lease = node.lease;
    of_node.progress = node.progress;
    of_node.ranks = node.ranks;
    DescribeState(now, state, policy, node, place, &of_node);
    if (state.bench().count(id) > 0) ++place;
  }
  std::stable_sort(view.nodes.begin(), view.nodes.end(), [](const NodeView& a, const NodeView& b) {
    const auto order = [](const NodeView& node) {
      return std::make_tuple(node.group_rank < 0, node.group_rank);
    };
    if (order(a) != order(b)) return order(a) < order(b);
    return NaturalLess(a.host, b.host);
  });
  for (const FailureRecord& failure : state.conduct().last_failures) {
    view.last_failures.push_back({failure.epoch, failure.what, now - failure.at});
  }
  return view;
}

}  // namespace convene::rendezvous
