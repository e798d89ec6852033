#include "worker_runtime/mesh/mesh.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr int kDegreeMax = 1 << 20;  // the product of three is no overflow

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

absl::Status CheckDegree(const char* name, int value, int smallest) {
  if (value > kDegreeMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", value, ": a parallel degree must be at most ", kDegreeMax));
  }
  if (value >= smallest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", value, ": a parallel degree must be at least 1",
                   smallest == 0 ? " (or 0 to derive it from the world size)" : ""));
}

// "1, 2, 4": every n for which `fixed` x n divides the world (the quotient becomes dp).
std::string Divisors(int world_size, int64_t fixed) {
  std::vector<int> fitting;
  if (world_size % fixed == 0) {
    const int rest = static_cast<int>(world_size / fixed);
    for (int candidate = 1; candidate <= rest; ++candidate) {
      if (rest % candidate == 0) fitting.push_back(candidate);
    }
  }
  return fitting.empty() ? "nothing" : absl::StrJoin(fitting, ", ");
}

// "tp=2 x cp=2 x pp=1", with cp only where it is more than 1; a degree of 0 is left out.
std::string Product(int tp, int cp, int pp) {
  std::vector<std::string> degrees;
  if (tp > 0) degrees.push_back(absl::StrCat("tp=", tp));
  if (cp > 1) degrees.push_back(absl::StrCat("cp=", cp));
  if (pp > 0) degrees.push_back(absl::StrCat("pp=", pp));
  return absl::StrJoin(degrees, " x ");
}

std::string WhatWouldFit(int world_size, int tp, int cp, int pp) {
  if (world_size % (int64_t{tp} * cp * pp) == 0) {
    return absl::StrCat("dp=", world_size / tp / cp / pp, " fits");
  }
  std::string text = absl::StrCat(
      "with ", Product(tp, cp, 0), ", pp may be: ", Divisors(world_size, int64_t{tp} * cp),
      "; with ", Product(0, cp, pp), ", tp may be: ", Divisors(world_size, int64_t{cp} * pp));
  if (cp == 1) return text;
  return absl::StrCat(text, "; with ", Product(tp, 1, pp),
                      ", cp may be: ", Divisors(world_size, int64_t{tp} * pp));
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

std::vector<std::vector<int>> AllGroups(const Layout& layout, Axes axes) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::vector<int> group = GroupOf(layout, axes, rank);
    // Each group is listed once, at its lowest member.
    if (!group.empty() && group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

absl::StatusOr<Layout> ResolveLayout(int world_size, int tp, int pp, int dp, int cp) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", world_size, ": a job has at least one worker"));
  }
  CONVENE_RETURN_IF_ERROR(CheckDegree("tp", tp, 1));
  CONVENE_RETURN_IF_ERROR(CheckDegree("cp", cp, 1));
  CONVENE_RETURN_IF_ERROR(CheckDegree("pp", pp, 1));
  CONVENE_RETURN_IF_ERROR(CheckDegree("dp", dp, 0));
  const int64_t model = int64_t{tp} * cp * pp;
  if (dp == 0) {
    if (world_size >= model) {
      return Layout{.pp = pp, .dp = static_cast<int>(world_size / model), .tp = tp, .cp = cp};
    }
    return absl::InvalidArgumentError(
        absl::StrCat(Product(tp, cp, pp), " = ", model,
                     " workers hold one replica of the model, and this job has ", world_size, ": ",
                     WhatWouldFit(world_size, tp, cp, pp)));
  }
  if (world_size % model == 0 && world_size / model == dp) {
    return Layout{.pp = pp, .dp = dp, .tp = tp, .cp = cp};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Product(tp, cp, pp), " x dp=", dp, " = ", static_cast<double>(model) * dp,
      ", but this job has ", world_size, " workers: ", WhatWouldFit(world_size, tp, cp, pp)));
}

absl::StatusOr<Layout> WithCopies(Layout layout, bool dp_is_free, int dp_shard, int dp_replicate) {
  if (dp_shard == 0 && dp_replicate == 0) return layout;
  const std::string asked = absl::StrJoin(
      {dp_shard == 0 ? std::string() : absl::StrCat("dp_shard_size=", dp_shard),
       dp_replicate == 0 ? std::string() : absl::StrCat("dp_replicate_size=", dp_replicate)},
      dp_shard > 0 && dp_replicate > 0 ? " x " : "");
  const int64_t unit = int64_t{std::max(dp_shard, 1)} * std::max(dp_replicate, 1);
  const bool is_given_whole = dp_shard > 0 && dp_replicate > 0;
  const int64_t fitting = is_given_whole ? unit : layout.dp / unit * unit;
  if (unit > layout.dp || (!dp_is_free && fitting != layout.dp)) {
    std::vector<int> legal;
    for (int divisor = 1; divisor <= layout.dp; ++divisor) {
      if (layout.dp % divisor == 0) legal.push_back(divisor);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        asked, " does not fit dp=", layout.dp, ": ",
        is_given_whole ? "their product must be dp, and each one of " : "it must be one of ",
        absl::StrJoin(legal, ", ")));
  }
  layout.dp = static_cast<int>(fitting);
  layout.dp_replicate = dp_replicate > 0 ? dp_replicate : layout.dp / dp_shard;
  return layout;
}

}  // namespace convene::worker
