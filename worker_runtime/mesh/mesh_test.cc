#include "worker_runtime/mesh/mesh.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"

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

TEST_CASE("data parallelism fills what the other axes leave") {
  for (const int world_size : {1, 2, 4, 8}) {
    for (const Layout& layout : LayoutsOf(world_size)) {
      const auto derived = ResolveLayout(world_size, layout.tp, layout.pp, 0, layout.cp);
      REQUIRE_OK(derived);
      CHECK(*derived == layout);
      const auto stated = ResolveLayout(world_size, layout.tp, layout.pp, layout.dp, layout.cp);
      REQUIRE_OK(stated);
      CHECK(*stated == layout);
    }
  }
}

TEST_CASE("workers beyond the last whole replica are left over") {
  struct Row {
    int world_size, tp, pp;
    Layout layout;
  };
  for (const Row& row :
       {Row{3, 2, 1, {.pp = 1, .dp = 1, .tp = 2}}, Row{7, 2, 1, {.pp = 1, .dp = 3, .tp = 2}},
        Row{11, 2, 2, {.pp = 2, .dp = 2, .tp = 2}}, Row{5, 1, 3, {.pp = 3, .dp = 1, .tp = 1}}}) {
    const auto layout = ResolveLayout(row.world_size, row.tp, row.pp, 0);
    REQUIRE_OK(layout);
    CHECK(*layout == row.layout);
  }
}

TEST_CASE("a layout that does not fit says the product and what would fit") {
  struct Row {
    int world_size, tp, pp, dp;
    const char* text;
  };
  for (const Row& row : {
           Row{2, 3, 1, 0,
               "tp=3 x pp=1 = 3 workers hold one replica of the model, and this job has 2: with "
               "tp=3, pp may be: nothing; with pp=1, tp may be: 1, 2"},
           Row{4, 2, 3, 0, "with tp=2, pp may be: 1, 2; with pp=3, tp may be: nothing"},
           Row{8, 3, 1, 2, "tp=3 x pp=1 x dp=2 = 6, but this job has 8 workers: with tp=3"},
           Row{8, 2, 2, 3, "tp=2 x pp=2 x dp=3 = 12, but this job has 8 workers: dp=2 fits"},
           Row{2, 2, 2, 1,
               "tp=2 x pp=2 x dp=1 = 4, but this job has 2 workers: with tp=2, "
               "pp may be: 1; with pp=2, tp may be: 1"},
           Row{8, 1 << 20, 1 << 20, 0, "= 1099511627776 workers hold one replica"},
           Row{8, 1, (1 << 20) + 1, 0, "pp=1048577: a parallel degree must be at most 1048576"},
           Row{8, 0, 1, 0, "tp=0: a parallel degree must be at least 1"},
           Row{8, 1, -2, 0, "pp=-2: a parallel degree must be at least 1"},
           Row{8, 1, 1, -1, "dp=-1: a parallel degree must be at least 1 (or 0 to derive it"},
           Row{0, 1, 1, 0, "world size 0"},
       }) {
    CHECK_STATUS(ResolveLayout(row.world_size, row.tp, row.pp, row.dp),
                 absl::StatusCode::kInvalidArgument, row.text);
  }
}

TEST_CASE("a layout with context parallelism that does not fit names all three degrees") {
  CHECK_STATUS(ResolveLayout(4, 2, 1, 0, 3), absl::StatusCode::kInvalidArgument,
               "tp=2 x cp=3 x pp=1 = 6 workers hold one replica of the model, and this job has 4: "
               "with tp=2 x cp=3, pp may be: nothing; with cp=3 x pp=1, tp may be: nothing; with "
               "tp=2 x pp=1, cp may be: 1, 2");
  CHECK_STATUS(ResolveLayout(8, 2, 1, 4, 2), absl::StatusCode::kInvalidArgument,
               "tp=2 x cp=2 x pp=1 x dp=4 = 16, but this job has 8 workers: dp=2 fits");
  CHECK_STATUS(ResolveLayout(8, 1, 1, 0, 0), absl::StatusCode::kInvalidArgument,
               "cp=0: a parallel degree must be at least 1");
  CHECK(ResolveLayout(7, 1, 1, 0, 3)->world_size() == 6);
}

TEST_CASE(
    "the data-parallel ranks become copies of shards, or the numbers that would fit are named") {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto copies = [](int dp, bool is_free, int shard, int replicate) {
    return WithCopies({.dp = dp, .tp = 2}, is_free, shard, replicate);
  };
  CHECK(copies(8, false, 0, 0)->dp_replicate == 1);
  CHECK(copies(8, false, 2, 0)->dp_replicate == 4);
  CHECK(copies(8, false, 0, 8)->dp_shard() == 1);
  CHECK(copies(8, false, 4, 2)->dp_shard() == 4);
  // A world that lost a node: whole copies alone.
  CHECK(copies(7, true, 2, 0)->dp == 6);
  CHECK(copies(7, true, 0, 3)->dp_shard() == 2);
  CHECK(copies(7, true, 3, 2)->dp == 6);
  CHECK_STATUS(copies(6, false, 4, 0), kInvalid,
               "dp_shard_size=4 does not fit dp=6: it must be one of 1, 2, 3, 6");
  CHECK_STATUS(copies(8, false, 2, 2), kInvalid,
               "dp_shard_size=2 x dp_replicate_size=2 does not fit dp=8: their product must be dp, "
               "and each one of 1, 2, 4, 8");
  CHECK_STATUS(copies(2, true, 4, 0), kInvalid, "dp_shard_size=4 does not fit dp=2");
  CHECK_STATUS(copies(2, true, 1 << 30, 1 << 30), kInvalid, "does not fit dp=2");
}

}  // namespace
}  // namespace convene::worker
