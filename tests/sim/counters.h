// A promise of every state of a job, whatever messages came.
#pragma once

#include <set>

#include "rendezvous/quorum/job_state.h"
#include "tests/sim/simulation.h"

namespace convene::sim {

// Checks that the counters agree with the nodes.
inline void CheckCounters(const rendezvous::JobState& state) {
  using rendezvous::MemberId;
  using rendezvous::NodeState;
  int ready = 0, joining = 0, old_workers = 0, running = 0, members = 0, away = 0;
  std::set<MemberId> bench, cooling;
  for (const auto& [id, node] : state.nodes()) {
    ready += node.state == NodeState::kReady;
    joining += node.state == NodeState::kJoining;
    old_workers += node.state == NodeState::kJoining && node.has_workers;
    running += node.state == NodeState::kRunning;
    members += node.is_member() && !node.is_cut_off;
    away += node.away && !node.is_cut_off;
    if (node.state == NodeState::kReady && !node.is_member()) bench.insert(id);
    if (node.state == NodeState::kCooling) cooling.insert(id);
    if (node.rival != MemberId()) {
      const rendezvous::Node* rival = state.Find(node.rival);
      Expect(rival != nullptr && rival->rival == id, "a contest of one");
    } else {
      Expect(node.state != NodeState::kContesting, "a node that contests with nobody");
    }
  }
  Expect(ready == state.ready_count() && joining == state.joining_count() &&
             old_workers == state.old_workers_count() && running == state.running_count() &&
             members == state.member_count() && away == state.away_count() &&
             bench == state.bench() && cooling == state.cooling(),
         "counters do not agree with nodes");
  Expect(state.phase() != rendezvous::Phase::kForming || running == 0,
         "an epoch may form before every survivor is ready");
}

}  // namespace convene::sim
