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

  int dp_shard() const { return dp / dp_replicate; }
  // Ranks that hold the same parameters and add up their gradients: of other samples, or of other
  // positions of the same ones.
  int gradient_ranks() const { return dp * cp; }
  int world_size() const { return pp * dp * cp * tp; }
  // "dp2 x tp2 x pp2", "dp4 (2 copies of 2 shards) x tp1 x pp1", "dp4 (whole copies) x ...", "dp1 x
  // cp2 x tp1 x pp1".
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
};

const char* AxesName(Axes axes);

// The global ranks of `rank`'s group, in ascending order; empty when `rank` is in no such group.
std::vector<int> GroupOf(const Layout& layout, Axes axes, int rank);

}  // namespace convene::worker
