// A fresh start: each rank makes the weights that it keeps, and they are those of one process.
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/initialize.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/checkpoint_world.h"

namespace convene::worker {
namespace {

using testing::kSeed;
using testing::Rank;
using testing::RequireAllOk;
using testing::Small;
using testing::World;

// Each tensor made at once.
std::map<std::string, std::vector<float>> WholeWeights() {
  std::map<std::string, std::vector<float>> weights;
  for (const UnitSpec& unit : UnitsOf(Small(), testing::WholeModel(Small()), 1, 0)) {
    for (const UnitTensor& tensor : unit.tensors) {
      for (const ParameterSlice& slice : tensor.slices) {
        std::vector<float>& values = weights[slice.name];
        values.resize(slice.count());
        InitializeParameter(slice, kSeed, 0, slice.count(), values.data());
      }
    }
  }
  return weights;
}

TEST_CASE("fresh weights are the bits of one process on every layout, whatever is sharded",
          "[once]") {
  const Layout layout =
      GENERATE(Layout{}, Layout{.dp = 3}, Layout{.dp = 4, .dp_replicate = 2}, Layout{.cp = 3},
               Layout{.pp = 2, .dp = 2, .tp = 2}, Layout{.tp = 2, .cp = 3});
  const int zero_stage = GENERATE(1, 2, 3);
  const bool offloads = GENERATE(false, true);
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  if (testing::OnGpus() && (zero_stage == 2 || layout.cp > 1)) return;
  if (!testing::HasPlacesOrSkips(layout.world_size())) return;
  INFO(layout.ToString() << ", ZeRO-" << zero_stage << ", " << DTypeName(dtype));
  World world(layout, kSeed, dtype, /*bucket_count_min=*/1, /*fresh_weights=*/true, zero_stage,
              offloads);
  const auto state = world.State();
  for (const auto& [name, values] : WholeWeights()) {
    INFO(name);
    CHECK((state.at(name) == values));
  }
  CHECK(world.EveryRankHolds(state));
}

TEST_CASE("a rank makes the weights of its own shard alone") {
  if (!testing::HasPlacesOrSkips(3)) return;
  for (const int zero_stage : {1, 3}) {
    World world({.dp = 3}, kSeed, DType::kFloat32, 1, /*fresh_weights=*/false, zero_stage);
    std::atomic<int64_t> made = 0;
    RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
      double told = 0;
      CONVENE_RETURN_IF_ERROR(
          rank.engine->InitializeWeights(WeightSet::kAll, [&](double done) { told = done; }));
      made += static_cast<int64_t>(told * static_cast<double>(rank.engine->store().shard().count) +
                                   0.5);
      return absl::OkStatus();
    }));
    CHECK(made == ParameterCount(Small()));
  }
}

}  // namespace
}  // namespace convene::worker
