#include "worker_runtime/shard/placement.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>

#include "worker_runtime/model/config.h"
#include "worker_runtime/model/testing/chunks.h"

namespace convene::worker {
namespace {

const Layout kLayouts[] = {{1, 1, 1}, {2, 1, 2}, {8, 1, 1}, {1, 1, 8}, {2, 2, 2}, {4, 1, 2}};
constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();

std::vector<UnitSpec> Units(const Layout& layout, bool tied = false) {
  auto config = NamedModel("llama-tiny");
  REQUIRE(config.ok());
  config->tied_embeddings = tied;
  return UnitsOf(*config, testing::EvenChunk(*config, layout.pp, 0), layout.tp, 0);
}

TEST_CASE("tensors lie in order, do not overlap and fit") {
  for (const Layout& layout : kLayouts) {
    const Placement placement = PlaceUnits(Units(layout), layout.dp, kOneBucket);
    int64_t end = 0;
    for (const PlacedParameter& slice : placement.parameters) {
      CHECK(slice.flat_offset >= end);
      end = slice.flat_offset + slice.count();
      const bool is_norm = slice.initializer == Initializer::kOnes;
      CHECK(is_norm == (slice.flat_offset < placement.same_on_tp_end));
    }
    CHECK(placement.flat_count >= end);
    CHECK(placement.flat_count % layout.dp == 0);
    end = 0;
    for (const Placement::Tensor& tensor : placement.tensors) {
      CHECK(tensor.begin >= end);
      CHECK(tensor.begin % kParameterAlignment == 0);
      end = tensor.begin + tensor.count;
    }
    CHECK(placement.flat_count >= end);
  }
}

TEST_CASE("a unit's tensors are placed as it declares them") {
  for (const Layout& layout : kLayouts) {
    const std::vector<UnitSpec> units = Units(layout);
    const Placement placement = PlaceUnits(units, layout.dp, 1);
    REQUIRE(placement.units.size() == units.size());
    for (size_t unit = 0; unit < units.size(); ++unit) {
      REQUIRE(placement.units[unit].tensors.size() == units[unit].tensors.size());
      for (size_t i = 0; i < units[unit].tensors.size(); ++i) {
        const UnitTensor& tensor = units[unit].tensors[i];
        const auto [begin, count, its_bucket, last_unit] =
            placement.tensors[placement.units[unit].tensors[i]];
        CHECK(count == tensor.count());
        CHECK(its_bucket == (tensor.same_on_tp ? 0 : placement.units[unit].bucket));
        // Its slices follow each other from there on.
        int64_t next = begin;
        for (const ParameterSlice& slice : tensor.slices) {
          const auto placed = std::find_if(
              placement.parameters.begin(), placement.parameters.end(),
              [&](const PlacedParameter& parameter) { return parameter.name == slice.name; });
          REQUIRE(placed != placement.parameters.end());
          CHECK(placed->flat_offset == next);
          next += slice.count();
        }
        const int bucket = tensor.same_on_tp ? 0 : placement.units[unit].bucket;
        CHECK(begin >= placement.buckets[bucket].begin);
        CHECK(begin + count <= placement.buckets[bucket].end());
      }
    }
  }
}

TEST_CASE("embedding and head share a tied table on one rank, and each end has it on two") {
  const Placement one = PlaceUnits(Units({}, /*tied=*/true), 1, kOneBucket);
  CHECK(one.units.front().tensors[kEmbeddingTable] == one.units.back().tensors[kHead]);
  CHECK(one.on_both_ends == -1);
  const Placement first = PlaceUnits(Units({.pp = 2}, /*tied=*/true), 1, kOneBucket);
  CHECK(first.on_both_ends == first.units.front().tensors[kEmbeddingTable]);
  CHECK(PlaceUnits(Units({.pp = 2}), 1, kOneBucket).on_both_ends == -1);
}

TEST_CASE("buckets hold whole units, cover the buffer and are divisible among the ranks") {
  for (int dp = 1; dp <= 8; ++dp) {
    for (const int64_t count_min : {kUnitBuckets, int64_t{1}, int64_t{100'000}, kOneBucket}) {
      INFO("dp " << dp << ", at least " << count_min);
      const Placement placement = PlaceUnits(Units({.dp = dp}), dp, count_min);
      int64_t end = 0;
      for (const ParameterBucket& bucket : placement.buckets) {
        CHECK(bucket.begin == end);
        CHECK(bucket.count > 0);
        CHECK(bucket.count % (kParameterAlignment * dp) == 0);
        end = bucket.end();
      }
      CHECK(end == placement.flat_count);
    }
  }
}

TEST_CASE("buckets are as large as was asked, but for the first, which gets what is left") {
  const std::vector<UnitSpec> units = Units({.dp = 2});
  const Placement whole = PlaceUnits(units, 2, 1);
  // The norms with the embedding, each block's matrices, the head.
  REQUIRE(whole.buckets.size() == units.size());
  const int64_t count_min = whole.buckets[1].count + 1;
  const Placement placement = PlaceUnits(units, 2, count_min);
  REQUIRE(placement.buckets.size() > 1);
  REQUIRE(placement.buckets.size() < whole.buckets.size());
  for (size_t i = 1; i < placement.buckets.size(); ++i) {
    CHECK(placement.buckets[i].count >= count_min);
  }
}

TEST_CASE(
    "each unit has a bucket of its own, behind one for the norms, and what two share lies once") {
  for (const bool tied : {false, true}) {
    const std::vector<UnitSpec> units = Units({.dp = 3}, tied);
    const Placement placement = PlaceUnits(units, 3, kUnitBuckets);
    CHECK(placement.buckets.size() == units.size() + (tied ? 0 : 1));
    CHECK(placement.buckets.front().end() - placement.same_on_tp_end < 3 * kParameterAlignment);
    for (size_t unit = 0; unit + 1 < units.size(); ++unit) {
      CHECK(placement.units[unit].bucket == static_cast<int>(unit) + 1);
    }
    CHECK(placement.units.back().bucket == (tied ? 1 : static_cast<int>(units.size())));
  }
  // An embedding alone has no norm.
  const Placement alone = PlaceUnits({Units({}).front()}, 2, kUnitBuckets);
  REQUIRE(alone.buckets.size() == 2);
  CHECK(alone.buckets.front().count == 2 * kParameterAlignment);
}

TEST_CASE("two slots hold any two neighbours of a model, whatever its table's size") {
  const auto slots = [](std::vector<int64_t> counts) {
    Placement placement;
    placement.buckets.push_back({.count = 64});
    for (const int64_t count : counts) placement.buckets.push_back({.count = count});
    return SlotCounts(placement);
  };
  CHECK(slots({900, 100, 100, 900}) == std::vector<int64_t>{900, 100});
  CHECK(slots({50, 100, 100, 50}) == std::vector<int64_t>{100, 100});
  CHECK(slots({50, 100, 100, 100}) == std::vector<int64_t>{100, 100});
  CHECK(slots({900, 100}) == std::vector<int64_t>{900, 100});
  CHECK(slots({900}) == std::vector<int64_t>{900});
  CHECK(slots({}).empty());
}

TEST_CASE("what no tensor has is padding, and nothing else") {
  const Placement placement = PlaceUnits(Units({.dp = 7}), 7, kUnitBuckets);
  std::vector<int> used(placement.flat_count);
  for (const Placement::Tensor& tensor : placement.tensors) {
    for (int64_t i = 0; i < tensor.count; ++i) ++used[tensor.begin + i];
  }
  for (size_t bucket = 0; bucket < placement.buckets.size(); ++bucket) {
    ForPadding(placement, static_cast<int>(bucket), [&](const FlatRange& gap) {
      CHECK(gap.first < gap.second);
      for (int64_t i = gap.first; i < gap.second; ++i) ++used[i];
    });
  }
  CHECK(std::count(used.begin(), used.end(), 1) == placement.flat_count);
}

TEST_CASE("the tensors before a unit are those of which no gradient has come yet") {
  for (const bool tied : {false, true}) {
    const Placement placement = PlaceUnits(Units({.dp = 3}, tied), 3, 1);
    const int units = static_cast<int>(placement.units.size());
    const int64_t whole = TensorsBefore(placement, units - 1).first;
    for (int unit = 0; unit < units; ++unit) {
      INFO("unit " << unit << (tied ? ", tied" : ""));
      const auto [begin, end] = TensorsBefore(placement, unit);
      int64_t elements = 0;
      for (const Placement::Tensor& tensor : placement.tensors) {
        if (tensor.begin + tensor.count <= begin || tensor.begin >= end) continue;
        CHECK(tensor.begin >= std::max(begin, placement.same_on_tp_end));
        CHECK(tensor.begin + tensor.count <= end);
        CHECK(tensor.last_unit < unit);
        elements += tensor.count;
      }
      // All matrices of the blocks before it, and of the embedding unless the head has it too.
      const int blocks = std::min(std::max(0, unit - 1), units - 2);
      const int64_t block = placement.tensors[placement.units[1].tensors[kQkv]].count +
                            placement.tensors[placement.units[1].tensors[kAttentionOut]].count +
                            placement.tensors[placement.units[1].tensors[kGateUp]].count +
                            placement.tensors[placement.units[1].tensors[kDown]].count;
      const int64_t table =
          placement.tensors[placement.units.front().tensors[kEmbeddingTable]].count;
      CHECK(elements == blocks * block + (tied || unit == 0 ? 0 : table));
      if (elements > 0) CHECK(begin == whole);
      CHECK(begin % kParameterAlignment == 0);
    }
  }
}

TEST_CASE("a bucket has as many elements as asked for, else more where more ranks reduce it") {
  CHECK(BucketCountMin({.dp = 8}, 1) == 1);
  CHECK(BucketCountMin({.dp = 8}) == 40'000'000);
  CHECK(BucketCountMin({.dp = 1024}) == 1'024'000'000);
  CHECK(PlaceUnits(Units({.dp = 2}), 2, 40'000'000).buckets.size() == 1);
}

}  // namespace
}  // namespace convene::worker
