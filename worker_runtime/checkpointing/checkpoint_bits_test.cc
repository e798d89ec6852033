// Checkpoints hold every bit of a training, whatever layout wrote them and whatever reads them.
#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/checkpoint_world.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::kSeed;
using testing::Rank;
using testing::RequireAllOk;
using testing::ResumeFrom;
using testing::World;

constexpr int kRanksMax = 8;

TEST_CASE("what one layout saves another restores, bit by bit") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const TempDir directory;
  World saved(GENERATE(Layout{.dp = 2, .tp = 2}, Layout{.tp = 2, .cp = 3}));
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const auto state = saved.State();
  REQUIRE(state.count("optimizer.second_moment/model.embed_tokens.weight") == 1);
  for (const Layout layout :
       {Layout{2, 1, 2}, Layout{}, Layout{2, 2, 1}, Layout{1, 3, 1}, Layout{.dp = 2, .cp = 3}}) {
    INFO(layout.ToString());
    World restored(layout, /*seed=*/99);
    CHECK(restored.State() != state);
    std::vector<int64_t> steps;
    RequireAllOk(restored.Restore(ResumeFrom(directory.path()), &steps));
    CHECK(steps == std::vector<int64_t>(layout.world_size(), 3));
    CHECK(restored.State() == state);
    CHECK(restored.EveryRankHolds(state));
  }
}

TEST_CASE("copies of key and value heads are saved once, and all restored, bit by bit") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const ModelConfig model = {2, 16, 20, /*heads=*/4, /*kv_heads=*/1, /*head_size=*/4, 20};
  const auto world = [&](const Layout& layout, uint64_t seed) {
    return World(layout, seed, DType::kFloat32, 1, /*fresh_weights=*/true, /*zero_stage=*/1,
                 /*offloads=*/false, model);
  };
  const TempDir copied, whole;
  World saved = world({.dp = 2, .tp = 4}, kSeed);
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(copied.path(), 3));
  const auto state = saved.State();
  std::vector<int64_t> steps;
  TrainOptions options = ResumeFrom(copied.path());
  options.model = model;
  World one = world({}, /*seed=*/99);
  RequireAllOk(one.Restore(options, &steps));
  CHECK(one.State() == state);
  RequireAllOk(one.Save(whole.path(), 3));
  options.checkpoint_dir = whole.path();
  World again = world({.tp = 4}, /*seed=*/98);
  RequireAllOk(again.Restore(options, &steps));
  CHECK(again.State() == state);
  CHECK(again.EveryRankHolds(state));
}

TEST_CASE(
    "whatever is sharded or in host memory, what one run saves another restores, bit by bit") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const auto dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  const int zero_stage = GENERATE(1, 2, 3), offloads = GENERATE(0, 1);
  if (testing::OnGpus() && zero_stage == 2) return;
  const TempDir directory;
  World saved({.dp = 2}, kSeed, dtype, 1, true, zero_stage, offloads == 1);
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const auto state = saved.State();
  RequireAllOk(saved.Train(2, /*first_step=*/4));
  World resumed({.dp = 2}, /*seed=*/99, dtype, 1, true, zero_stage, offloads == 1);
  World other({.dp = 3}, /*seed=*/99, dtype, 1, true, 4 - zero_stage, offloads == 0);
  std::vector<int64_t> steps;
  for (World* world : {&resumed, &other}) {
    RequireAllOk(world->Restore(ResumeFrom(directory.path()), &steps));
    CHECK(world->State() == state);
    CHECK(world->EveryRankHolds(state));
  }
  RequireAllOk(resumed.Train(2, 4));
  CHECK(resumed.State() == saved.State());
}

// Moves of expert-parallel ranks, of the ranks that share an expert's state, and of the stages.
TEST_CASE("experts that one layout saves another restores, bit by bit, with their router's bias") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const std::string name = GENERATE("moe-tiny", "deepseek-tiny");
  INFO(name);
  ModelConfig model = NamedModel(name).value();
  model.layers = 2;
  model.experts.first_dense_layers = 0;
  if (model.family->router_bias) model.experts.bias_rate = 0.01;
  const auto world = [&](const std::pair<Layout, int>& cut, uint64_t seed) {
    return World(cut.first, seed, DType::kFloat32, 1, /*fresh_weights=*/true, cut.second,
                 /*offloads=*/false, model);
  };
  using Cut = std::pair<Layout, int>;  // with its ZeRO stage
  const Cut all_axes = {{.pp = 2, .dp = 2, .tp = 2, .ep = 2}, 1};
  const Cut sharded = {{.dp = 4, .tp = 2, .ep = 2}, 3};
  const bool is_sharded = GENERATE(false, true);
  const Cut from = is_sharded ? sharded : all_axes;
  const TempDir directory;
  World saved = world(from, kSeed);
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const auto state = saved.State();
  TrainOptions options = ResumeFrom(directory.path());
  options.model = model;
  std::vector<int64_t> steps;
  for (const Cut& to :
       {from, is_sharded ? all_axes : sharded, Cut{{}, 1}, Cut{{.dp = 4, .ep = 4}, 1},
        Cut{{.dp = 4, .ep = 2}, 1}, Cut{{.dp = 4, .dp_replicate = 2, .ep = 2}, 1},
        Cut{{.pp = 2, .tp = 2}, 1}}) {
    INFO(to.first.ToString() << ", ZeRO-" << to.second);
    World restored = world(to, /*seed=*/99);
    RequireAllOk(restored.Restore(options, &steps));
    CHECK(restored.State() == state);
    CHECK(restored.EveryRankHolds(state));
  }
  World resumed = world(from, /*seed=*/99);
  RequireAllOk(resumed.Restore(options, &steps));
  RequireAllOk(saved.Train(2, /*first_step=*/4));
  RequireAllOk(resumed.Train(2, /*first_step=*/4));
  CHECK(resumed.State() == saved.State());
  CHECK(resumed.State() != state);
}

TEST_CASE("a run in bf16 goes on from its checkpoint as if it had not stopped") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const TempDir directory;
  const Layout layout{.pp = 2, .dp = 2, .tp = 1};
  World whole(layout, kSeed, DType::kBFloat16);
  RequireAllOk(whole.Train(3));
  RequireAllOk(whole.Save(directory.path(), 3));
  const auto saved = whole.State();
  RequireAllOk(whole.Train(2, /*first_step=*/4));

  World resumed(layout, /*seed=*/99, DType::kBFloat16);
  std::vector<int64_t> steps;
  RequireAllOk(resumed.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(resumed.EveryRankHolds(resumed.State()));
  RequireAllOk(resumed.Train(2, /*first_step=*/4));
  CHECK(resumed.State() == whole.State());
  CHECK(resumed.EveryRankHolds(whole.State()));

  // The master weights are saved: another precision starts from the same ones.
  World in_fp32({.pp = 1, .dp = 1, .tp = 2}, /*seed=*/99);
  RequireAllOk(in_fp32.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(steps == std::vector<int64_t>(2, 3));
  CHECK(in_fp32.State() == saved);
  CHECK(in_fp32.EveryRankHolds(saved));
}

TEST_CASE("a run goes on with buckets of another size, bit by bit") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  CAPTURE(dtype);
  const TempDir directory;
  const Layout layout{.pp = 1, .dp = 2, .tp = 1};
  World many(layout, kSeed, dtype, /*bucket_count_min=*/1);
  RequireAllOk(many.Train(3));
  RequireAllOk(many.Save(directory.path(), 3));
  for (const int64_t bucket_count_min : {1500, 1 << 30}) {
    CAPTURE(bucket_count_min);
    World other(layout, /*seed=*/99, dtype, bucket_count_min);
    std::vector<int64_t> steps;
    RequireAllOk(other.Restore(ResumeFrom(directory.path()), &steps));
    CHECK(steps == std::vector<int64_t>(2, 3));
    CHECK(other.State() == many.State());
    CHECK(other.EveryRankHolds(many.State()));
  }
}

TEST_CASE("a checkpoint needs no fresh weights beneath it, and a fresh start gets them later") {
  if (!testing::HasPlacesOrSkips(kRanksMax)) return;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TempDir directory;
    World whole({.pp = 2, .dp = 2, .tp = 1}, kSeed, dtype);
    const auto fresh = whole.State();
    RequireAllOk(whole.Train(3));
    RequireAllOk(whole.Save(directory.path(), 3));
    World restored({.pp = 1, .dp = 3, .tp = 2}, kSeed, dtype, 1, /*fresh_weights=*/false);
    for (const auto& [name, values] : restored.State()) {
      INFO(name);
      CHECK(values == std::vector<float>(values.size()));
    }
    std::vector<int64_t> steps;
    RequireAllOk(restored.Restore(ResumeFrom(directory.path()), &steps));
    CHECK(steps == std::vector<int64_t>(6, 3));
    CHECK(restored.State() == whole.State());
    CHECK(restored.EveryRankHolds(whole.State()));
    World later({.pp = 1, .dp = 1, .tp = 1}, kSeed, dtype, 1, /*fresh_weights=*/false);
    RequireAllOk(later.OnEveryRank(
        [](Rank& rank, Stream& /*stream*/) { return rank.engine->InitializeWeights(); }));
    CHECK(later.State() == fresh);
    CHECK(later.EveryRankHolds(fresh));
  }
}

}  // namespace
}  // namespace convene::worker
