#include "worker_runtime/model/parameters.h"

#include <omp.h>

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/model/testing/chunks.h"

namespace convene::worker {
namespace {

ModelConfig Tiny(bool tied, int kv_heads = 8) {
  auto config = NamedModel("llama-tiny");
  REQUIRE(config.ok());
  config->tied_embeddings = tied;
  config->kv_heads = kv_heads;
  return *config;
}

const Layout kLayouts[] = {{1, 1, 1}, {2, 1, 2}, {8, 1, 1}, {1, 1, 8}, {2, 2, 2}, {4, 1, 2}};

std::vector<ParameterSlice> SlicesOf(const ModelConfig& config, const Layout& layout,
                                     const Coordinate& coordinate) {
  std::map<std::string, ParameterSlice> slices;  // units may share a tensor
  for (const UnitSpec& unit : UnitsOf(config, testing::EvenChunk(config, layout.pp, coordinate.pp),
                                      layout.tp, coordinate.tp)) {
    for (const UnitTensor& tensor : unit.tensors) {
      for (const ParameterSlice& slice : tensor.slices) slices.emplace(slice.name, slice);
    }
  }
  std::vector<ParameterSlice> all;
  for (auto& [name, slice] : slices) all.push_back(std::move(slice));
  return all;
}

// For every element of every global tensor, the number of owning ranks that hold it (data-parallel
// rank 0 only: replicas hold the same).
std::map<std::string, std::vector<int>> CountOwners(const ModelConfig& config,
                                                    const Layout& layout) {
  std::map<std::string, std::vector<int>> owners;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    const Coordinate coordinate = CoordinateOf(layout, rank);
    if (coordinate.dp != 0) continue;
    for (const ParameterSlice& slice : SlicesOf(config, layout, coordinate)) {
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
  const std::pair<bool, int> models[] = {{false, 8}, {true, 8}, {false, 1}, {true, 2}};
  for (const auto& [tied, kv_heads] : models) {
    const ModelConfig config = Tiny(tied, kv_heads);
    for (const Layout& layout : kLayouts) {
      INFO(layout.ToString() << (tied ? " tied, " : ", ") << kv_heads << " key heads");
      int64_t elements = 0;
      for (const auto& [name, counts] : CountOwners(config, layout)) {
        INFO(name);
        elements += counts.size();
        CHECK(std::count(counts.begin(), counts.end(), 1) == static_cast<int64_t>(counts.size()));
      }
      CHECK(elements == ParameterCount(config));
    }
  }
}

TEST_CASE("each rank holds the key and value head of its query heads, and one copy is owned") {
  const ModelConfig config = Tiny(false, /*kv_heads=*/2);
  for (int rank = 0; rank < 8; ++rank) {
    INFO("rank " << rank);
    for (const ParameterSlice& slice : SlicesOf(config, {.tp = 8}, {.tp = rank})) {
      const bool is_copied = slice.name.find("k_proj") != slice.name.npos ||
                             slice.name.find("v_proj") != slice.name.npos;
      CHECK(slice.tp_copies == (is_copied ? 4 : 1));
      if (!is_copied) continue;
      CHECK(slice.extent[0] == config.head_size);
      CHECK(slice.offset[0] == (rank < 4 ? 0 : config.head_size));
      CHECK(slice.owned == (rank == 0 || rank == 4));
    }
  }
}

TEST_CASE("an element starts with the same value on every layout") {
  const ModelConfig config = Tiny(false, GENERATE(8, 2, 1));
  std::map<std::string, std::vector<float>> whole;
  for (const ParameterSlice& slice : SlicesOf(config, {}, {})) {
    whole[slice.name].resize(slice.count());
    InitializeParameter(slice, 7, 0, slice.count(), whole[slice.name].data());
  }
  const Layout layout{2, 1, 4};
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    for (const ParameterSlice& slice : SlicesOf(config, layout, CoordinateOf(layout, rank))) {
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
