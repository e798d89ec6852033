#include "worker_runtime/mesh/mesh.h"

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

bool Has(Axes set, Axes axis) {
  return (static_cast<unsigned>(set) & static_cast<unsigned>(axis)) != 0;
}

bool IsEnd(const Layout& layout, int stage) { return stage == 0 || stage == layout.pp - 1; }

// A rank's place among those of dp x cp, with the experts' axes.
struct ExpertPlace {
  int ep;
  int shard;
  int replicate;
};

ExpertPlace ExpertPlaceOf(const Layout& layout, const Coordinate& rank) {
  const int place = rank.dp * layout.cp + rank.cp;
  const int group = place / layout.ep;
  return {place % layout.ep, group % layout.expert_shards(), group / layout.expert_shards()};
}

// Where each rank has all experts nobody has these groups: the dense ones serve.
bool SharesExperts(const Layout& layout, Axes axes, const Coordinate& a, const Coordinate& b) {
  if (layout.ep == 1) return a == b;
  const ExpertPlace at = ExpertPlaceOf(layout, a);
  const ExpertPlace bt = ExpertPlaceOf(layout, b);
  return a.pp == b.pp && a.tp == b.tp && (axes == Axes::kEp || at.ep == bt.ep) &&
         (axes == Axes::kExpertShard || at.shard == bt.shard) &&
         (axes == Axes::kExpertReplicate || at.replicate == bt.replicate);
}

// Whether two ranks differ in no coordinate but those of `axes`.
bool SharesGroup(const Layout& layout, Axes axes, const Coordinate& a, const Coordinate& b) {
  if (axes == Axes::kEp || axes == Axes::kExpertShard || axes == Axes::kExpertReplicate) {
    return SharesExperts(layout, axes, a, b);
  }
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

bool Layout::has_legal_ep() const {
  const int shards = dp_shard() * cp;
  if (ep <= shards) return shards % ep == 0;
  return ep % shards == 0 && dp_replicate % (ep / shards) == 0;
}

std::string Layout::ToString() const {
  std::string copies;
  if (dp_replicate > 1) {
    copies = dp_shard() == 1
                 ? " (whole copies)"
                 : absl::StrCat(" (", dp_replicate, " copies of ", dp_shard(), " shards)");
  }
  if (ep > 1) absl::StrAppend(&copies, " (ep", ep, ")");
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

int ExpertRankOf(const Layout& layout, const Coordinate& coordinate) {
  return ExpertPlaceOf(layout, coordinate).ep;
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
    case Axes::kEp:
      return "ep";
    case Axes::kExpertShard:
      return "expert dp";
    case Axes::kExpertReplicate:
      return "expert dp replicate";
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
