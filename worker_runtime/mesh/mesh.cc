#include "worker_runtime/mesh/mesh.h"

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

bool Has(Axes set, Axes axis) {
  return (static_cast<unsigned>(set) & static_cast<unsigned>(axis)) != 0;
}

bool IsEnd(const Layout& layout, int stage) { return stage == 0 || stage == layout.pp - 1; }

// Whether two ranks differ in no coordinate but those of `axes`.
bool SharesGroup(const Layout& layout, Axes axes, const Coordinate& a, const Coordinate& b) {
  if (Has(axes, Axes::kPipelineEnds)) {
    if (!IsEnd(layout, a.pp) || !IsEnd(layout, b.pp)) return false;
  } else if (!Has(axes, Axes::kPp) && a.pp != b.pp) {
    return false;
  }
  const int shards = layout.dp_shard();
  return (Has(axes, Axes::kTp) || a.tp == b.tp) && (Has(axes, Axes::kCp) || a.cp == b.cp) &&
         (Has(axes, Axes::kDpShard) || a.dp % shards == b.dp % shards) &&
         (Has(axes, Axes::kDpReplicate) || a.dp / shards == b.dp / shards);
}

}  // namespace

std::string Layout::ToString() const {
  std::string copies;
  if (dp_replicate > 1) {
    copies = dp_shard() == 1
                 ? " (whole copies)"
                 : absl::StrCat(" (", dp_replicate, " copies of ", dp_shard(), " shards)");
  }
  return absl::StrCat("dp", dp, copies, cp > 1 ? absl::StrCat(" x cp", cp) : "", " x tp", tp,
                      " x pp", pp);
}

Coordinate CoordinateOf(const Layout& layout, int rank) {
  CONVENE_CHECK(rank >= 0 && rank < layout.world_size());
  return {.pp = rank / (layout.tp * layout.cp * layout.dp),
          .dp = rank / (layout.tp * layout.cp) % layout.dp,
          .tp = rank % layout.tp,
          .cp = rank / layout.tp % layout.cp};
}

int RankOf(const Layout& layout, const Coordinate& coordinate) {
  CONVENE_CHECK(coordinate.pp >= 0 && coordinate.pp < layout.pp);
  CONVENE_CHECK(coordinate.dp >= 0 && coordinate.dp < layout.dp);
  CONVENE_CHECK(coordinate.cp >= 0 && coordinate.cp < layout.cp);
  CONVENE_CHECK(coordinate.tp >= 0 && coordinate.tp < layout.tp);
  return ((coordinate.pp * layout.dp + coordinate.dp) * layout.cp + coordinate.cp) * layout.tp +
         coordinate.tp;
}

const char* AxesName(Axes axes) {
  switch (axes) {
    case Axes::kTp:
      return "tp";
    case Axes::kCp:
      return "cp";
    case Axes::kDpShard:
      return "dp shard";
    case Axes::kShard:
      return "dp";
    case Axes::kDpReplicate:
      return "dp replicate";
    case Axes::kPp:
      return "pp";
    case Axes::kPipelineEnds:
      return "embedding";
    case Axes::kWorld:
      return "world";
  }
  CONVENE_CHECK(false);
}

std::vector<int> GroupOf(const Layout& layout, Axes axes, int rank) {
  const Coordinate own = CoordinateOf(layout, rank);
  std::vector<int> group;
  for (int other = 0; other < layout.world_size(); ++other) {
    if (SharesGroup(layout, axes, own, CoordinateOf(layout, other))) group.push_back(other);
  }
  return group;
}

}  // namespace convene::worker
