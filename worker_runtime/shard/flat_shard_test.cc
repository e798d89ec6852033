#include "worker_runtime/shard/flat_shard.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

ModelConfig Tiny() {
  auto config = NamedModel("llama-tiny");
  REQUIRE(config.ok());
  return *config;
}

TEST_CASE("the shards of a rank hold every element of every parameter once") {
  for (const Layout layout : {Layout{1, 2, 1}, Layout{2, 4, 1}, Layout{1, 4, 2}, Layout{2, 3, 2}}) {
    const ParameterTable table = BuildParameterTable(Tiny(), layout, {});
    std::vector<int64_t> held(table.slices.size(), 0);
    for (int dp = 0; dp < layout.dp; ++dp) {
      int64_t last_end = 0;
      for (const ShardSegment& segment : MakeFlatShard(table, layout.dp, dp).segments) {
        CHECK(segment.flat_begin >= last_end);
        last_end = segment.flat_begin + segment.count;
        // Shards come in order, so each must begin where the one before stopped.
        CHECK(segment.slice_begin == held[segment.parameter]);
        held[segment.parameter] += segment.count;
      }
    }
    for (size_t i = 0; i < held.size(); ++i) CHECK(held[i] == table.slices[i].count());
  }
}

TEST_CASE("shards are equally long, whatever the parameters") {
  const Layout layout{1, 8, 1};
  const ParameterTable table = BuildParameterTable(Tiny(), layout, {});
  for (int dp = 0; dp < 8; ++dp) {
    CHECK(MakeFlatShard(table, 8, dp).count * 8 == table.flat_count);
  }
}

}  // namespace
}  // namespace convene::worker
