#include "worker_runtime/model/parameters.h"

#include <omp.h>

#include <array>
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
    ModelConfig config = Tiny(tied, kv_heads);
    if (tied) config.adapter = {.rank = 16, .alpha = 8};
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

// Of its tensors, by name.
std::map<std::string, ParameterSlice> ByName(const ModelConfig& config, const Layout& layout,
                                             const Coordinate& coordinate) {
  std::map<std::string, ParameterSlice> slices;
  for (const ParameterSlice& slice : SlicesOf(config, layout, coordinate)) {
    slices[slice.name] = slice;
  }
  return slices;
}

TEST_CASE("adapters stand beside the matrices that are named, and all else is frozen") {
  ModelConfig config = Tiny(false);
  config.adapter = {.rank = 3, .alpha = 6, .targets = {"v_proj", "mlp.down_proj"}};
  const int64_t frozen = ParameterCount(Tiny(false));
  // v_proj: 8 heads of 4 by 64; down_proj: 64 by 192.
  const int64_t adapters = config.layers * 3 * (64 + 32 + 192 + 64);
  CHECK(TrainedCount(config) == adapters);
  CHECK(ParameterCount(config) == frozen + adapters);
  CHECK(TrainedCount(Tiny(false)) == frozen);
  for (const UnitSpec& unit : UnitsOf(config, testing::EvenChunk(config, 1, 0), 1, 0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      CHECK(tensor.is_frozen == (tensor.name().find(".lora_") == std::string::npos));
    }
  }
}

TEST_CASE("a rank has of each adapter what its layer's slice wants, and a part of what is whole") {
  ModelConfig config = Tiny(false, /*kv_heads=*/2);
  config.adapter = {.rank = 16, .alpha = 8};
  const std::string layer = "model.layers.0.";
  for (int rank = 0; rank < 8; ++rank) {
    INFO("rank " << rank);
    const auto slices = ByName(config, {.tp = 8}, {.tp = rank});
    const auto check = [&](const char* name, std::array<int64_t, 2> extent, bool owned,
                           int copies) {
      INFO(name);
      const ParameterSlice& slice = slices.at(layer + name);
      CHECK(slice.extent == extent);
      CHECK(slice.owned == owned);
      CHECK(slice.tp_copies == copies);
    };
    check("self_attn.q_proj.lora_A.weight", {16, 64}, rank == 0, 8);
    check("self_attn.q_proj.lora_B.weight", {8, 16}, true, 1);
    check("self_attn.k_proj.lora_B.weight", {4, 16}, rank == 0 || rank == 4, 4);
    check("self_attn.o_proj.lora_A.weight", {16, 8}, true, 1);
    check("self_attn.o_proj.lora_B.weight", {64, 16}, rank == 0, 8);
    check("mlp.down_proj.lora_A.weight", {16, 24}, true, 1);
    check("self_attn.k_proj.weight", {4, 64}, rank == 0 || rank == 4, 1);  // has no gradient
  }
}

TEST_CASE("each expert of a rank has adapters of its own, cut as its matrices are") {
  ModelConfig config = NamedModel("moe-tiny").value();
  config.adapter = {.rank = 4, .alpha = 8, .targets = {"w1", "w2"}};
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.experts.ffn_size;
  const std::vector<UnitSpec> units =
      UnitsOf(config, testing::EvenChunk(config, 1, 0), /*tp_size=*/2, /*tp_rank=*/1,
              /*ep_size=*/2, /*ep_rank=*/1);
  const int first = config.experts.count / 2;
  const std::vector<int> places = PlacesOf(units[1]);
  const auto check = [&](BlockTensor role, const char* end, std::array<int64_t, 2> extent,
                         bool owned, int copies) {
    INFO(end);
    const UnitTensor& tensor = units[1].tensors[places[role]];
    CHECK(tensor.of_experts);
    CHECK_FALSE(tensor.is_frozen);
    REQUIRE(static_cast<int>(tensor.slices.size()) == first);
    const ParameterSlice& slice = tensor.slices[1];
    CHECK(slice.name == "model.layers.0.block_sparse_moe.experts." + std::to_string(first + 1) +
                            "." + end + ".weight");
    CHECK(slice.extent == extent);
    CHECK(slice.owned == owned);
    CHECK(slice.tp_copies == copies);
  };
  check(kExpertGateUpA, "w1.lora_A", {4, hidden}, false, 2);
  check(kExpertGateUpB, "w1.lora_B", {ffn / 2, 4}, true, 1);
  check(kExpertDownA, "w2.lora_A", {4, ffn / 2}, true, 1);
  check(kExpertDownB, "w2.lora_B", {hidden, 4}, false, 2);
  CHECK(units[1].tensors[places[kExpertDown]].is_frozen);
}

TEST_CASE("targets name matrices as PEFT's do, and experts all at once") {
  const auto has = [](std::vector<std::string> targets, const char* name) {
    return IsTarget({.rank = 4, .alpha = 8, .targets = std::move(targets)}, name);
  };
  const char* const of_expert = "model.layers.1.mlp.experts.7.up_proj";
  const char* const of_shared = "model.layers.1.mlp.shared_experts.up_proj";
  for (const char* const name : {of_expert, of_shared}) {
    CHECK(has({"up_proj"}, name));
    CHECK_FALSE(has({"p_proj"}, name));
    CHECK(has({}, name) == (name == of_shared));
    CHECK(has({"experts.*.up_proj"}, name) == (name == of_expert));
    CHECK(has({"shared_experts.up_proj"}, name) == (name == of_shared));
  }
  CHECK_FALSE(has({"experts.7.up_proj"}, of_expert));
  CHECK(has({"model.layers.1.mlp.experts.*.up_proj"}, of_expert));
}

TEST_CASE("adapters that make no sense are refused, with what would") {
  const auto refused = [](const AdapterConfig& adapter, int kv_heads, int tp) {
    ModelConfig config = Tiny(false, kv_heads);
    config.adapter = adapter;
    return std::string(ValidateAdapters(config, tp).message());
  };
  CHECK(refused({.rank = 8, .alpha = 8}, 8, 8).empty());
  CHECK(refused({}, 8, 8).empty());
  CHECK(refused({.rank = 65, .alpha = 8}, 8, 1) ==
        "lora_rank 65 must be at most the model's hidden_size, 64");
  CHECK(refused({.rank = 8}, 8, 1) == "lora_alpha 0 must be greater than 0");
  CHECK(refused({.rank = 8, .alpha = 8, .targets = {"q_proj", "proj"}}, 8, 1) ==
        "lora_targets names proj, which is no matrix of this model that may have an adapter; these "
        "may: down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj");
  // Each rank has 8 query rows of a rank's values; behind them 4 ranks have the same key rows.
  CHECK(refused({.rank = 12, .alpha = 8}, 2, 8).find("choose a rank that is a multiple of 8") !=
        std::string::npos);
  CHECK(refused({.rank = 16, .alpha = 8}, 2, 8).empty());
}

TEST_CASE("an element starts with the same value on every layout") {
  ModelConfig config = Tiny(false, GENERATE(8, 2, 1));
  config.adapter = {.rank = 16, .alpha = 8};
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
