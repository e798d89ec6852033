// PURE. Where the copies of the ranks' shards lie, and which of those that the nodes hold make up
// one whole state.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace convene::worker {

// A rank's node, by its number in the job, and the topology label of that node: 0 for none.
struct RankPlace {
  int node = 0;
  int64_t label = 0;
};

// [owner]: the ranks that hold a copy of that rank's shard, each on another node, none on the
// owner's: `replicas` of them, or as many as there are other nodes. Nodes with another label than
// the owner's come first. The owners of a node are dealt to the ranks of the nodes in turn, and all
// nodes are as loaded as the labels allow. The same on all ranks.
std::vector<std::vector<int>> PlaceReplicas(const std::vector<RankPlace>& places, int replicas);

// The ranks that hold this state were given ranks anew since: `owner` is of the `world_size` ranks
// that the job had when the copy was made. A generation ends where the ranks load another state
// than the one that they have (a restart, a rollback), so two copies of one generation and step are
// parts of one state.
struct CopyName {
  int64_t generation = 0;
  int64_t step = 0;
  int owner = 0;
  int world_size = 1;
  friend bool operator==(const CopyName&, const CopyName&) = default;
};

// A copy that stands whole in a node's memory.
struct HeldCopy {
  CopyName name;
  int reader = 0;           // a rank of today on this node
  int node = 0;             // as RankPlace::node
  int64_t window = 0;       // of the node's memory
  int64_t index_bytes = 0;  // the length of its index
};

struct WholeState {
  int64_t generation = 0;
  int64_t step = 0;
  // [owner]: its copies, at least one, in the order of `copies`.
  std::vector<std::vector<HeldCopy>> copies;
};

// A state that was chosen before and could not be read.
struct RefusedState {
  int64_t generation = 0;
  int64_t step = 0;
};

// The newest state of which every owner's copy stands somewhere: of the latest generation, and of
// its latest step, before `refused`. nullopt: there is none. Ranks with the same arguments get the
// same.
std::optional<WholeState> ChooseCopies(const std::vector<HeldCopy>& copies,
                                       const std::optional<RefusedState>& refused);

// The copy that rank `reader` on `node` reads: one of its own node, else one after the other in
// turn, so that readers spread over the nodes. REQUIRES: copies is not empty.
const HeldCopy& NearestCopy(const std::vector<HeldCopy>& copies, int reader, int node);

}  // namespace convene::worker
