// PURE. The grid of ranks: world = pp x dp x tp, tp fastest, pp slowest, so that tensor-parallel
// groups stay inside a node.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::worker {

struct Layout {
  int pp = 1;  // pipeline stages
  int dp = 1;  // data-parallel replicas (ZeRO-1 shards over them)
  int tp = 1;  // tensor-parallel ranks

  int world_size() const { return pp * dp * tp; }
  // "dp2 x tp2 x pp2".
  std::string ToString() const;
  friend bool operator==(const Layout&, const Layout&) = default;
};

struct Coordinate {
  int pp = 0;
  int dp = 0;
  int tp = 0;
  friend bool operator==(const Coordinate&, const Coordinate&) = default;
};

// REQUIRES: 0 <= rank < layout.world_size().
Coordinate CoordinateOf(const Layout& layout, int rank);
int RankOf(const Layout& layout, const Coordinate& coordinate);

enum class Axis {
  kTp,
  kDp,
  kPp,
  // First and last stage of one pipeline: they share tied embeddings. Ranks of other stages are in
  // no such group.
  kEmbedding,
  kWorld,
};

const char* AxisName(Axis axis);

// The global ranks that share `rank`'s other coordinates, in ascending order along `axis`; empty
// when `rank` is in no such group.
std::vector<int> GroupOf(const Layout& layout, Axis axis, int rank);

// All groups of an axis, in one order that is the same on every rank: communicators are created in
// it.
std::vector<std::vector<int>> AllGroups(const Layout& layout, Axis axis);

// `dp` 0: as many replicas of tp x pp ranks as there are workers for. The layout may then be
// smaller than the world: the ranks from layout.world_size() on are spares. With a given `dp`, tp x
// pp x dp must be `world_size`. InvalidArgument when the workers are too few, or too many for a
// given dp; the text names the product and the values that would fit.
absl::StatusOr<Layout> ResolveLayout(int world_size, int tp, int pp, int dp);

}  // namespace convene::worker
