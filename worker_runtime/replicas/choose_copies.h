// PURE. Where the copies of the ranks' shards lie, and which of those that the nodes hold make up
// one whole state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace convene::worker {

// A rank's node, by its number in the job, and the topology label of that node: 0 for none.
struct RankPlace {
  int node = 0;
  int64_t label = 0;
};

// [rank]: the number of its shard. Ranks with the same `contents` have the same shard: without
// ZeRO, and with several replicas of data parallelism, the training itself keeps one state on many
// nodes. Numbers rise with the ranks, from 0 on, without a gap; -1: contents 0, the rank has none.
std::vector<int> NumberShards(const std::vector<double>& contents);

// Whether this rank keeps its node's own copy of its shard: the first one of the node that has it.
bool KeepsOwnCopy(const std::vector<RankPlace>& places, const std::vector<int>& shard_of_rank,
                  int rank);

// [sender]: the ranks to which it sends a copy of its shard, each on another node, none on a node
// that has the shard by itself. The first rank that has a shard sends it, so that it stands on
// `replicas` nodes beside the sender's, or on as many as there are. Nodes come first whose label no
// node with the shard has. Where enough nodes have the shard by themselves and all of these have
// one label, one more copy goes to the least loaded node of another label that keeps fewer than
// `replicas` copies of others a rank; where each of these nodes keeps as many, the shard has no
// such copy. The senders of a node are dealt to the ranks of the nodes in turn, and all nodes are
// as loaded as the labels allow. The same on all ranks.
std::vector<std::vector<int>> PlaceReplicas(const std::vector<RankPlace>& places,
                                            const std::vector<int>& shard_of_rank, int replicas);

// Ranks may have been given anew since: `shard` is one of the `shards` that the job had when the
// copy was made. A generation ends where the ranks load another state than the one that they have
// (a restart, a rollback), so two copies of one generation and step are parts of one state.
struct CopyName {
  int64_t generation = 0;
  int64_t step = 0;
  int shard = 0;
  int shards = 1;
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
  // [shard]: its copies, at least one, in the order of `copies`.
  std::vector<std::vector<HeldCopy>> copies;
};

// A state that was chosen before and could not be read.
struct RefusedState {
  int64_t generation = 0;
  int64_t step = 0;
};

// The newest state of which a copy of every shard stands somewhere: of the latest generation, and
// of its latest step, before `refused`. nullopt: there is none. Ranks with the same arguments get
// the same.
std::optional<WholeState> ChooseCopies(const std::vector<HeldCopy>& copies,
                                       const std::optional<RefusedState>& refused);

// For a person, where ChooseCopies finds nothing: what the newest state lacks. "": there are no
// copies.
std::string WhatIsMissing(const std::vector<HeldCopy>& copies);

// The copy that rank `reader` on `node` reads: one of its own node, else one after the other in
// turn, so that readers spread over the nodes. REQUIRES: copies is not empty.
const HeldCopy& NearestCopy(const std::vector<HeldCopy>& copies, int reader, int node);

}  // namespace convene::worker
