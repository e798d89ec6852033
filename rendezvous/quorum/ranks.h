// PURE. Chooses the nodes that take part in an epoch, and their order of ranks.
//
// Each member holds a seat in [0, nodes_max); group ranks are the order of the seats. Survivors
// keep their seats, so their order never changes. In a first epoch nodes of one topology label are
// neighbours, and so are labels of one branch ("core." or "core/" of "core.leaf7", "core/leaf7").
// Of two labels or branches the one with the smaller node rank comes first, so that the node of
// rank 0 has seat 0. Without node ranks they stand in natural order, nodes without a label last.
// Nodes of one label are seated by node rank when given, then by natural host name order, then by
// incarnation (several agents on one host). Later a newcomer takes
//
//   without labels   the seat of its own node rank when that is free (a node that comes back gets
//                    its place again), else the lowest free one (a spare fills the hole)
//   with labels      the lowest hole beside a survivor of its label, else the lowest free one
#pragma once

#include <vector>

#include "absl/strings/string_view.h"
#include "rendezvous/quorum/job_state.h"

namespace convene::rendezvous {

// Digits compare as numbers: node2 before node10; then as plain text ("node02" after "node2"). A
// strict weak order.
bool NaturalLess(absl::string_view a, absl::string_view b);

struct Seating {
  std::vector<MemberId> members;  // in the order of group ranks
  std::vector<int> seats;         // of each
};

// The nodes of `state` that are ready: survivors first, then newcomers while there are seats.
Seating SeatMembers(const JobState& state, int nodes_max);

}  // namespace convene::rendezvous
