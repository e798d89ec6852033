#include "worker_runtime/model/parameters.h"

#include <omp.h>

#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "worker_runtime/model/initialize.h"

namespace convene::worker {
namespace {

ModelConfig Tiny(bool tied) {
  auto config = NamedModel("llama-tiny");
  REQUIRE(config.ok());
  config->tied_embeddings = tied;
  return *config;
}

const Layout kLayouts[] = {{1, 1, 1}, {2, 1, 2}, {8, 1, 1}, {1, 1, 8}, {2, 2, 2}, {4, 1, 2}};

// For every element of every global tensor, the number of owning ranks that hold it (data-parallel
// rank 0 only: replicas hold the same).
std::map<std::string, std::vector<int>> CountOwners(const ModelConfig& config,
                                                    const Layout& layout) {
  std::map<std::string, std::vector<int>> owners;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const Coordinate coordinate = CoordinateOf(layout, rank);
    if (coordinate.dp != 0) continue;
    for (const ParameterSlice& slice : BuildParameterTable(config, layout, coordinate).slices) {
      auto& counts = owners[slice.name];
      counts.resize(slice.global_shape[0] * slice.global_shape[1]);
      if (!slice.owned) continue;
      for (int64_t row = 0; row < slice.extent[0]; ++row) {
        for (int64_t column = 0; column < slice.extent[1]; ++column) {
          ++counts[(slice.offset[0] + row) * slice.global_shape[1] + slice.offset[1] + column];
        }
      }
    }
  }
  return owners;
}

TEST_CASE("on every layout each element of each tensor has exactly one owner") {
  for (const bool tied : {false, true}) {
    const ModelConfig config = Tiny(tied);
    for (const Layout& layout : kLayouts) {
      INFO(layout.ToString() << (tied ? " tied" : ""));
      int64_t elements = 0;
      for (const auto& [name, counts] : CountOwners(config, layout)) {
        INFO(name);
        elements += counts.size();
        CHECK(std::count(counts.begin(), counts.end(), 1) == static_cast<int64_t>(counts.size()));
      }
      CHECK(elements == config.ParameterCount());
    }
  }
}

TEST_CASE("slices lie in order, do not overlap and fit") {
  for (const Layout& layout : kLayouts) {
    const ParameterTable table = BuildParameterTable(Tiny(false), layout, {});
    int64_t end = 0;
    for (const ParameterSlice& slice : table.slices) {
      CHECK(slice.flat_offset >= end);
      end = slice.flat_offset + slice.count();
    }
    CHECK(table.flat_count >= end);
    CHECK(table.flat_count % layout.dp == 0);
    for (const ParameterSlice& slice : table.slices) {
      const bool is_norm = slice.initializer == Initializer::kOnes;
      CHECK(is_norm == (slice.flat_offset < table.norms_end));
    }
  }
}

// Checks the promises of a rank's buckets, whatever their number.
void CheckBuckets(const ParameterTable& table, int dp) {
  int64_t end = 0;
  for (const ParameterBucket& bucket : table.buckets) {
    CHECK(bucket.begin == end);
    CHECK(bucket.count > 0);
    CHECK(bucket.count % (kParameterAlignment * dp) == 0);
    end = bucket.end();
  }
  CHECK(end == table.flat_count);
}

TEST_CASE("buckets hold whole groups, cover the buffer and are divisible among the ranks") {
  for (int dp = 1; dp <= 8; ++dp) {
    for (const int pp : {1, 2}) {
      for (const int64_t count_min : {int64_t{1}, int64_t{100'000}, DefaultBucketCount(dp)}) {
        const Layout layout{pp, dp, 1};
        INFO(layout.ToString() << ", at least " << count_min);
        const ParameterTable table = BuildParameterTable(Tiny(false), layout, {}, count_min);
        CheckBuckets(table, dp);
        for (const ParameterSlice& slice : table.slices) {
          int holders = 0;
          for (const ParameterBucket& bucket : table.buckets) {
            holders += slice.flat_offset >= bucket.begin &&
                       slice.flat_offset + slice.count() <= bucket.end();
          }
          CHECK(holders == 1);
        }
        // Borders are the borders of groups.
        for (size_t i = 1; i < table.buckets.size(); ++i) {
          int borders = 0;
          for (size_t block = 0; block <= table.blocks.size(); ++block) {
            borders += table.BlockBegin(block) == table.buckets[i].begin;
          }
          CHECK(borders == 1);
        }
      }
    }
  }
}

TEST_CASE("buckets are as large as was asked, but for the first, which gets what is left") {
  const Layout layout{1, 2, 1};
  const ParameterTable whole = BuildParameterTable(Tiny(false), layout, {}, 1);
  // The norms with the embedding, each block's matrices, the head.
  REQUIRE(whole.buckets.size() == whole.blocks.size() + 2);
  const int64_t block_count = whole.buckets[1].count;
  const int64_t count_min = block_count + 1;
  const ParameterTable table = BuildParameterTable(Tiny(false), layout, {}, count_min);
  REQUIRE(table.buckets.size() > 1);
  REQUIRE(table.buckets.size() < whole.buckets.size());
  for (size_t i = 1; i < table.buckets.size(); ++i) CHECK(table.buckets[i].count >= count_min);
}

TEST_CASE("one bucket is all where there is nothing to reduce, to gain, or to cut") {
  CHECK(BuildParameterTable(Tiny(false), {1, 1, 1}, {}, 1).buckets.size() == 1);
  const Layout pipeline{2, 2, 1};
  CHECK(BuildParameterTable(Tiny(false), pipeline, {.pp = 0}, 1).buckets.size() > 1);
  CHECK(BuildParameterTable(Tiny(false), pipeline, {.pp = 1}, 1).buckets.size() == 1);
  CHECK(BuildParameterTable(Tiny(false), {1, 2, 1}, {}).buckets.size() == 1);
  CHECK(DefaultBucketCount(8) == 40'000'000);
  CHECK(DefaultBucketCount(1024) == 1'024'000'000);
}

TEST_CASE("an element starts with the same value on every layout") {
  const ModelConfig config = Tiny(false);
  std::map<std::string, std::vector<float>> whole;
  for (const ParameterSlice& slice : BuildParameterTable(config, {}, {}).slices) {
    whole[slice.name].resize(slice.count());
    InitializeParameter(slice, 7, 0, slice.count(), whole[slice.name].data());
  }
  const Layout layout{2, 1, 4};
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const ParameterSlice& slice :
         BuildParameterTable(config, layout, CoordinateOf(layout, rank)).slices) {
      std::vector<float> part(slice.count());
      InitializeParameter(slice, 7, 0, slice.count(), part.data());
      const int64_t place = slice.offset[0] * slice.global_shape[1] + slice.offset[1];
      CHECK(part[0] == whole[slice.name][place]);
      const int64_t last =
          place + (slice.extent[0] - 1) * slice.global_shape[1] + slice.extent[1] - 1;
      CHECK(part.back() == whole[slice.name][last]);
    }
  }
}

TEST_CASE("initial weights do not depend on the number of threads") {
  const ParameterSlice slice{.name = "a",
                             .global_shape = {40, 30},
                             .offset = {3, 5},
                             .extent = {31, 17},
                             .standard_deviation = 0.02};
  const int threads_before = omp_get_max_threads();
  std::vector<std::vector<float>> values;
  for (const int threads : {1, 2, 7}) {
    omp_set_num_threads(threads);
    values.emplace_back(slice.count());
    InitializeParameter(slice, 1, 0, slice.count(), values.back().data());
  }
  omp_set_num_threads(threads_before);
  CHECK(values[0] == values[1]);
  CHECK(values[0] == values[2]);
  // Old seeds must go on giving the old weights.
  CHECK(values[0][0] == 0.00742719881f);
  CHECK(values[0].back() == 0.00440180954f);
}

TEST_CASE("initial weights have the wanted spread and differ by seed and name") {
  ParameterSlice slice{.name = "a",
                       .global_shape = {200, 500},
                       .offset = {0, 0},
                       .extent = {200, 500},
                       .standard_deviation = 0.02};
  std::vector<float> values(slice.count()), other(slice.count());
  InitializeParameter(slice, 1, 0, slice.count(), values.data());
  double sum = 0, squares = 0;
  for (const float v : values) {
    sum += v;
    squares += double{v} * v;
  }
  // Five standard errors of the mean and of the deviation of 100,000 normal deviates.
  CHECK(std::abs(sum / values.size()) < 5 * 0.02 / std::sqrt(1e5));
  CHECK(std::abs(std::sqrt(squares / values.size()) - 0.02) < 5 * 0.02 / std::sqrt(2e5));
  InitializeParameter(slice, 2, 0, slice.count(), other.data());
  CHECK(values != other);
  slice.name = "b";
  InitializeParameter(slice, 1, 0, slice.count(), other.data());
  CHECK(values != other);
}

}  // namespace
}  // namespace convene::worker
