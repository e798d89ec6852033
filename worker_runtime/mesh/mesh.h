// PURE. The grid of ranks: world = pp x dp_replicate x dp_shard x cp x tp, tp fastest, pp slowest,
// so that the groups that send the most data stay inside a node.
#pragma once

#include <string>
#include <vector>

namespace convene::worker {

struct Layout {
  int pp = 1;  // pipeline stages
  int dp = 1;  // data-parallel ranks: dp_replicate x dp_shard
  int tp = 1;  // tensor-parallel ranks
  // Copies of the optimizer's state over the data-parallel ranks; each copy is sharded over the
  // others. Divides dp.
  int dp_replicate = 1;
  int cp = 1;  // context-parallel ranks: they share the positions of the same samples
  // Expert-parallel ranks: neighbours of dp x cp, each of which has its own experts. With
  // shards = dp_shard x cp it divides shards, or it is shards times a divisor of dp_replicate.
  int ep = 1;

  int dp_shard() const { return dp / dp_replicate; }
  // Ranks that hold the same parameters and add up their gradients: of other samples, or of other
  // positions of the same ones.
  int gradient_ranks() const { return dp * cp; }
  // The same of an expert's parameters; and of these the ones that share one copy of the
  // optimizer's state.
  int expert_gradient_ranks() const { return gradient_ranks() / ep; }
  int expert_shards() const { return dp_shard() * cp > ep ? dp_shard() * cp / ep : 1; }
  // Whether ep is as its comment above demands.
  bool has_legal_ep() const;
  int world_size() const { return pp * dp * cp * tp; }
  // "dp2 x tp2 x pp2", "dp4 (2 copies of 2 shards) x tp1 x pp1", "dp4 (whole copies) x ...", "dp1 x
  // cp2 x tp1 x pp1", "dp4 (ep2) x tp1 x pp1".
  std::string ToString() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct Coordinate {
  int pp = 0;
  int dp = 0;
  int tp = 0;
  int cp = 0;
  friend bool operator==(const Coordinate&, const Coordinate&) = default;
};

// REQUIRES: 0 <= rank < layout.world_size().
Coordinate CoordinateOf(const Layout& layout, int rank);
int RankOf(const Layout& layout, const Coordinate& coordinate);
// The rank's place among the expert-parallel ones.
int ExpertRankOf(const Layout& layout, const Coordinate& coordinate);

// A set of axes. Its groups are the ranks that differ in no other coordinate.
enum class Axes : unsigned {
  kTp = 1,
  kDpShard = 2,
  kDpReplicate = 4,
  kPp = 8,
  kCp = 16,
  // The ranks that share one copy of the optimizer's state.
  kShard = kDpShard | kCp,
  kWorld = kTp | kShard | kDpReplicate | kPp,
  // First and last stage of one pipeline: they share tied embeddings. Ranks of other stages are in
  // no such group.
  kPipelineEnds = 32,
  // With ep 1 the rank alone; else over dp x cp: the ranks whose experts together are all experts;
  // the ranks that share one copy
  // of the optimizer's state of the same experts; the ranks that keep a copy of the same shard.
  kEp = 64,
  kExpertShard = 128,
  kExpertReplicate = 256,
};

const char* AxesName(Axes axes);

// The global ranks of `rank`'s group, in ascending order; empty when `rank` is in no such group.
std::vector<int> GroupOf(const Layout& layout, Axes axes, int rank);

}  // namespace convene::worker
