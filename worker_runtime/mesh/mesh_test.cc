#include "worker_runtime/mesh/mesh.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/mesh/testing/all_groups.h"

namespace convene::worker {
namespace {

std::vector<Layout> LayoutsOf(int world_size) {
  std::vector<Layout> layouts;
  for (int pp = 1; pp <= world_size; ++pp) {
    for (int dp = 1; pp * dp <= world_size; ++dp) {
      if (world_size % (pp * dp) != 0) continue;
      const int rest = world_size / (pp * dp);
      for (int cp = 1; cp <= rest; ++cp) {
        if (rest % cp == 0) layouts.push_back({.pp = pp, .dp = dp, .tp = rest / cp, .cp = cp});
      }
    }
  }
  return layouts;
}

// "tp: 0 1 | 2 3".
std::string Table(const Layout& layout) {
  std::string table = layout.ToString() + "\n";
  for (const Axes axes : {Axes::kTp, Axes::kCp, Axes::kShard, Axes::kDpReplicate, Axes::kPp,
                          Axes::kPipelineEnds, Axes::kWorld}) {
    if (axes == Axes::kDpReplicate && layout.dp_replicate == 1) continue;
    if (axes == Axes::kCp && layout.cp == 1) continue;
    std::vector<std::string> groups;
    for (const auto& group : AllGroups(layout, axes)) groups.push_back(absl::StrJoin(group, " "));
    absl::StrAppend(&table, AxesName(axes), ": ", absl::StrJoin(groups, " | "), "\n");
  }
  return table;
}

TEST_CASE("groups of the layouts people use") {
  CHECK(Table({.pp = 1, .dp = 1, .tp = 1}) ==
        "dp1 x tp1 x pp1\n"
        "tp: 0\n"
        "dp: 0\n"
        "pp: 0\n"
        "embedding: 0\n"
        "world: 0\n");
  CHECK(Table({.pp = 1, .dp = 4, .tp = 1}) ==
        "dp4 x tp1 x pp1\n"
        "tp: 0 | 1 | 2 | 3\n"
        "dp: 0 1 2 3\n"
        "pp: 0 | 1 | 2 | 3\n"
        "embedding: 0 | 1 | 2 | 3\n"
        "world: 0 1 2 3\n");
  CHECK(Table({.pp = 2, .dp = 2, .tp = 2}) ==
        "dp2 x tp2 x pp2\n"
        "tp: 0 1 | 2 3 | 4 5 | 6 7\n"
        "dp: 0 2 | 1 3 | 4 6 | 5 7\n"
        "pp: 0 4 | 1 5 | 2 6 | 3 7\n"
        "embedding: 0 4 | 1 5 | 2 6 | 3 7\n"
        "world: 0 1 2 3 4 5 6 7\n");
  CHECK(Table({.pp = 4, .dp = 1, .tp = 2}) ==
        "dp1 x tp2 x pp4\n"
        "tp: 0 1 | 2 3 | 4 5 | 6 7\n"
        "dp: 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7\n"
        "pp: 0 2 4 6 | 1 3 5 7\n"
        "embedding: 0 6 | 1 7\n"
        "world: 0 1 2 3 4 5 6 7\n");
}

TEST_CASE("copies of shards: neighbours share a copy") {
  const std::string table = Table({.pp = 1, .dp = 4, .tp = 2, .dp_replicate = 2});
  CHECK(table ==
        "dp4 (2 copies of 2 shards) x tp2 x pp1\n"
        "tp: 0 1 | 2 3 | 4 5 | 6 7\n"
        "dp: 0 2 | 1 3 | 4 6 | 5 7\n"
        "dp replicate: 0 4 | 1 5 | 2 6 | 3 7\n"
        "pp: 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7\n"
        "embedding: 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7\n"
        "world: 0 1 2 3 4 5 6 7\n");
}

TEST_CASE("ranks that share samples share the optimizer's state too") {
  CHECK(Table({.pp = 2, .tp = 2, .cp = 2}) ==
        "dp1 x cp2 x tp2 x pp2\n"
        "tp: 0 1 | 2 3 | 4 5 | 6 7\n"
        "cp: 0 2 | 1 3 | 4 6 | 5 7\n"
        "dp: 0 2 | 1 3 | 4 6 | 5 7\n"
        "pp: 0 4 | 1 5 | 2 6 | 3 7\n"
        "embedding: 0 4 | 1 5 | 2 6 | 3 7\n"
        "world: 0 1 2 3 4 5 6 7\n");
  CHECK(Table({.dp = 4, .dp_replicate = 2, .cp = 2}) ==
        "dp4 (2 copies of 2 shards) x cp2 x tp1 x pp1\n"
        "tp: 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7\n"
        "cp: 0 1 | 2 3 | 4 5 | 6 7\n"
        "dp: 0 1 2 3 | 4 5 6 7\n"
        "dp replicate: 0 4 | 1 5 | 2 6 | 3 7\n"
        "pp: 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7\n"
        "embedding: 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7\n"
        "world: 0 1 2 3 4 5 6 7\n");
}

TEST_CASE("ranks that have other experts are neighbours of dp x cp") {
  const auto groups = [](const Layout& layout) {
    std::string text;
    for (const Axes axes : {Axes::kEp, Axes::kExpertShard, Axes::kExpertReplicate}) {
      absl::StrAppend(&text, AxesName(axes), ":");
      for (const auto& group : AllGroups(layout, axes)) {
        absl::StrAppend(&text, " [", absl::StrJoin(group, " "), "]");
      }
      absl::StrAppend(&text, "\n");
    }
    return text;
  };
  CHECK(groups({.dp = 4, .tp = 2, .ep = 2}) ==
        "ep: [0 2] [1 3] [4 6] [5 7]\n"
        "expert dp: [0 4] [1 5] [2 6] [3 7]\n"
        "expert dp replicate: [0] [1] [2] [3] [4] [5] [6] [7]\n");
  CHECK(groups({.pp = 2, .dp = 2, .cp = 2, .ep = 4}) ==
        "ep: [0 1 2 3] [4 5 6 7]\n"
        "expert dp: [0] [1] [2] [3] [4] [5] [6] [7]\n"
        "expert dp replicate: [0] [1] [2] [3] [4] [5] [6] [7]\n");
  // Two copies of four shards: experts over two neighbours of each copy.
  CHECK(groups({.dp = 8, .dp_replicate = 2, .ep = 2}) ==
        "ep: [0 1] [2 3] [4 5] [6 7]\n"
        "expert dp: [0 2] [1 3] [4 6] [5 7]\n"
        "expert dp replicate: [0 4] [1 5] [2 6] [3 7]\n");
  // Whole copies: experts over ranks of several of them.
  CHECK(groups({.dp = 4, .dp_replicate = 4, .ep = 2}) ==
        "ep: [0 1] [2 3]\n"
        "expert dp: [0] [1] [2] [3]\n"
        "expert dp replicate: [0 2] [1 3]\n");
  CHECK(groups({.dp = 2}) == "ep: [0] [1]\nexpert dp: [0] [1]\nexpert dp replicate: [0] [1]\n");
}

TEST_CASE("experts come out even within the shards, or over whole copies of them") {
  CHECK(Layout{.dp = 6, .ep = 3}.has_legal_ep());
  CHECK(Layout{.dp = 2, .cp = 2, .ep = 4}.has_legal_ep());
  CHECK(Layout{.dp = 8, .dp_replicate = 4, .ep = 4}.has_legal_ep());
  CHECK_FALSE(Layout{.dp = 6, .ep = 4}.has_legal_ep());
  CHECK_FALSE(Layout{.dp = 6, .dp_replicate = 3, .ep = 4}.has_legal_ep());
  CHECK_FALSE(Layout{.dp = 2, .ep = 4}.has_legal_ep());
}

TEST_CASE("coordinates and ranks are inverse, tp fastest and pp slowest") {
  for (const int world_size : {1, 2, 4, 8}) {
    for (const Layout& layout : LayoutsOf(world_size)) {
      INFO(layout.ToString());
      int rank = 0;
      for (int pp = 0; pp < layout.pp; ++pp) {
        for (int dp = 0; dp < layout.dp; ++dp) {
          for (int cp = 0; cp < layout.cp; ++cp) {
            for (int tp = 0; tp < layout.tp; ++tp, ++rank) {
              const Coordinate coordinate = {.pp = pp, .dp = dp, .tp = tp, .cp = cp};
              CHECK(RankOf(layout, coordinate) == rank);
              CHECK(CoordinateOf(layout, rank) == coordinate);
            }
          }
        }
      }
      CHECK(rank == world_size);
    }
  }
}

TEST_CASE("every axes divides the ranks it has among its groups") {
  for (const int world_size : {1, 2, 4, 8}) {
    for (const Layout& layout : LayoutsOf(world_size)) {
      for (const Axes axes :
           {Axes::kTp, Axes::kCp, Axes::kShard, Axes::kPp, Axes::kPipelineEnds, Axes::kWorld}) {
        INFO(layout.ToString() << " " << AxesName(axes));
        std::set<int> seen;
        for (const auto& group : AllGroups(layout, axes)) {
          CHECK(std::is_sorted(group.begin(), group.end()));
          for (const int rank : group) {
            CHECK(seen.insert(rank).second);
            CHECK(GroupOf(layout, axes, rank) == group);
          }
        }
        for (int rank = 0; rank < world_size; ++rank) {
          CHECK(GroupOf(layout, axes, rank).empty() == !seen.contains(rank));
        }
        const bool middle_stages = axes == Axes::kPipelineEnds && layout.pp > 2;
        CHECK(seen.size() ==
              (middle_stages ? 2u * layout.dp * layout.cp * layout.tp : 1u * world_size));
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker
