// Real engines keep copies of their shards in the memory of two nodes, and other engines, on other
// layouts, go on from them.
#include <sys/mman.h>

#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/checkpointing/save_restore.h"
#include "worker_runtime/replicas/peer_replicas.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/checkpoint_world.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::kData;
using testing::kSamples;
using testing::kSeed;
using testing::Rank;
using testing::RequireAllOk;
using testing::ResumeFrom;
using testing::World;

using Nodes = std::vector<UniqueFd>;

Nodes MakeNodes(int count) {
  Nodes nodes;
  for (int i = 0; i < count; ++i) nodes.emplace_back(memfd_create("node", MFD_CLOEXEC));
  return nodes;
}

// The ranks of `world`, the same number on each node.
absl::StatusOr<std::unique_ptr<PeerReplicas>> MakeReplicas(const Rank& rank, const Nodes& nodes,
                                                           int epoch, int replicas = 1) {
  const int local_size = std::max(1, rank.world->size() / static_cast<int>(nodes.size()));
  const int node = rank.world->rank() / local_size;
  return PeerReplicas::Create({.memory_path = absl::StrCat("/proc/self/fd/", nodes[node].get()),
                               .replicas = replicas,
                               .epoch = epoch,
                               .local_rank = rank.world->rank() % local_size,
                               .local_world_size = local_size,
                               .node = node,
                               .max_nodes = 2},
                              *rank.world, *rank.device);
}

void Stage(World& world, const Nodes& nodes, int64_t step, int replicas = 1) {
  RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(const auto replicas, MakeReplicas(rank, nodes, 1, replicas));
    CONVENE_RETURN_IF_ERROR(replicas->BeginGeneration(/*is_from_memory=*/false));
    CONVENE_RETURN_IF_ERROR(replicas->Stage(world.Info(step), rank.engine->optimizer()));
    return replicas->Finish();
  }));
}

// From memory, or from the checkpoints in `directory`. Each rank's answer: its path, "memory", or
// "nothing".
std::vector<std::string> Restore(World& world, const Nodes& nodes, const std::string& directory,
                                 const ModelConfig& model = testing::Small()) {
  TrainOptions options = ResumeFrom(directory);
  options.model = model;
  std::vector<std::string> from(64);
  RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(const auto replicas, MakeReplicas(rank, nodes, 2));
    CONVENE_ASSIGN_OR_RETURN(
        const auto restored,
        RestoreCheckpoint(options, {.data = kData, .samples = kSamples, .is_restart = true},
                          rank.engine->optimizer(), *rank.world, stream, replicas.get()));
    from[rank.world->rank()] = !restored.has_value()    ? "nothing"
                               : restored->path.empty() ? "memory"
                                                        : restored->path;
    return absl::OkStatus();
  }));
  from.erase(std::find(from.begin(), from.end(), ""), from.end());
  return from;
}

TEST_CASE("any layout goes on from the copies of another one, of a lost node too, bit by bit") {
  const auto from = GENERATE(Layout{.dp = 2, .tp = 2}, Layout{.dp = 4}, Layout{2, 1, 2});
  const auto zero_stage = GENERATE(1, 3);
  if (!testing::HasPlacesOrSkips(4)) return;
  INFO(from.ToString() << ", ZeRO stage " << zero_stage);
  if (from.pp > 1 && zero_stage == 3) return;
  World saved(from, kSeed, DType::kFloat32, 1, true, zero_stage);
  RequireAllOk(saved.Train(3));
  Nodes nodes = MakeNodes(2);
  Stage(saved, nodes, 3);
  const auto state = saved.State();
  RequireAllOk(saved.Train(2, /*first_step=*/4));
  nodes[0] = UniqueFd(memfd_create("new", MFD_CLOEXEC));
  SECTION("the same layout, with a new node") {
    World resumed(from, /*seed=*/99, DType::kFloat32, 1, true, zero_stage);
    CHECK(Restore(resumed, nodes, "") == std::vector<std::string>(4, "memory"));
    CHECK(resumed.State() == state);
    CHECK(resumed.EveryRankHolds(state));
    RequireAllOk(resumed.Train(2, /*first_step=*/4));
    CHECK(resumed.State() == saved.State());
  }
  SECTION("other layouts") {
    for (const Layout to : {Layout{2, 1, 2}, Layout{.tp = 2}, Layout{.dp = 4}}) {
      INFO(to.ToString());
      World resumed(to, /*seed=*/99);
      Restore(resumed, nodes, "");
      CHECK(resumed.State() == state);
      CHECK(resumed.EveryRankHolds(state));
    }
  }
  SECTION("the one node that is left") {
    nodes.erase(nodes.begin());
    World resumed({.dp = 2}, /*seed=*/99);
    CHECK(Restore(resumed, nodes, "") == std::vector<std::string>(2, "memory"));
    CHECK(resumed.State() == state);
  }
}

TEST_CASE("experts' copies have all of them, of a lost node too, for any layout, bit by bit") {
  if (!testing::HasPlacesOrSkips(8)) return;
  ModelConfig model = NamedModel("deepseek-tiny").value();
  model.layers = 2;
  model.experts.first_dense_layers = 0;
  model.experts.bias_rate = 0.01;
  const auto world = [&](const Layout& layout, int zero_stage, uint64_t seed) {
    return World(layout, seed, DType::kFloat32, 1, true, zero_stage, /*offloads=*/false, model);
  };
  const int zero_stage = GENERATE(1, 3);
  const Layout from = zero_stage == 3 ? Layout{.dp = 4, .tp = 2, .ep = 2}
                                      : Layout{.pp = 2, .dp = 2, .tp = 2, .ep = 2};
  INFO(from.ToString() << ", ZeRO stage " << zero_stage);
  World saved = world(from, zero_stage, kSeed);
  RequireAllOk(saved.Train(3));
  Nodes nodes = MakeNodes(2);
  Stage(saved, nodes, 3);
  const auto state = saved.State();
  RequireAllOk(saved.Train(2, /*first_step=*/4));
  nodes[1] = UniqueFd(memfd_create("new", MFD_CLOEXEC));
  World resumed = world(from, zero_stage, /*seed=*/99);
  CHECK(Restore(resumed, nodes, "", model) == std::vector<std::string>(8, "memory"));
  CHECK(resumed.State() == state);
  RequireAllOk(resumed.Train(2, /*first_step=*/4));
  CHECK(resumed.State() == saved.State());
  nodes.pop_back();
  World smaller = world({.dp = 4, .ep = 4}, 1, /*seed=*/99);
  CHECK(Restore(smaller, nodes, "", model) == std::vector<std::string>(4, "memory"));
  CHECK(smaller.State() == state);
  CHECK(smaller.EveryRankHolds(state));
}

TEST_CASE("equal shards are copies of each other: a lost node costs nothing, without a replica") {
  if (!testing::HasPlacesOrSkips(4)) return;
  const auto lost = GENERATE(0, 1, -1);
  // Without ZeRO each data-parallel rank has a replica of the whole state.
  const auto& [layout, zero_stage] =
      GENERATE(std::pair{Layout{.dp = 2, .dp_replicate = 2}, 0},
               std::pair{Layout{.dp = 2, .tp = 2, .dp_replicate = 2}, 0},
               std::pair{Layout{.dp = 4, .dp_replicate = 2}, 1},
               std::pair{Layout{.dp = 4, .dp_replicate = 2}, 3});
  INFO(layout.ToString() << ", ZeRO stage " << zero_stage << ", node " << lost << " is lost");
  World saved(layout, kSeed, DType::kFloat32, 1, true, zero_stage);
  RequireAllOk(saved.Train(3));
  Nodes nodes = MakeNodes(2);
  Stage(saved, nodes, 3, /*replicas=*/0);
  // Else a worker died alone.
  if (lost >= 0) nodes.erase(nodes.begin() + lost);
  World resumed({.dp = 2}, /*seed=*/99);
  CHECK(Restore(resumed, nodes, "") == std::vector<std::string>(2, "memory"));
  CHECK(resumed.State() == saved.State());
  CHECK(resumed.EveryRankHolds(saved.State()));
}

// Gives the ranks from `first` on other last bits, as machines do that round otherwise.
void RoundOtherwise(World& world, int first) {
  RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
    CheckpointedState& state = rank.engine->optimizer();
    // A GPU's copy is filled first.
    CONVENE_RETURN_IF_ERROR(state.PiecesToWrite().status());
    CONVENE_ASSIGN_OR_RETURN(const auto pieces, state.PiecesToRead());
    for (const PieceToRead& item : pieces) {
      const absl::Span<float> values(static_cast<float*>(item.data.data), item.data.count);
      if (rank.world->rank() < first) continue;
      for (float& value : values) value = std::nextafter(value, 1e9F);
    }
    return state.FinishRead();
  }));
}

TEST_CASE("equal shards that machines rounded otherwise are read from one of them, by all ranks") {
  if (!testing::HasPlacesOrSkips(4)) return;
  const Layout layout = {.dp = 4, .dp_replicate = 4};
  const auto zero_stage = GENERATE(0, 1);
  World saved(layout, kSeed, DType::kFloat32, 1, true, zero_stage);
  RequireAllOk(saved.Train(3));
  const auto state = saved.State();
  RoundOtherwise(saved, /*first=*/2);
  REQUIRE_FALSE(saved.EveryRankHolds(state));
  Nodes nodes = MakeNodes(2);
  Stage(saved, nodes, 3, /*replicas=*/0);
  const auto restores = [&](const Layout& to) {
    World resumed(to, /*seed=*/99);
    const auto ranks = static_cast<size_t>(to.world_size());
    CHECK(Restore(resumed, nodes, "") == std::vector<std::string>(ranks, "memory"));
    CHECK(resumed.State() == state);
    CHECK(resumed.EveryRankHolds(state));
  };
  SECTION("each node has a copy") { restores({.dp = 2}); }
  SECTION("each node has a copy, and two ranks") { restores(layout); }
  SECTION("a node has none, and asks one of both") {
    nodes.emplace_back(memfd_create("more", MFD_CLOEXEC));
    nodes.emplace_back(memfd_create("more", MFD_CLOEXEC));
    restores(layout);
  }
}

TEST_CASE("equal shards of experts are copies of each other, and dense weights are read once") {
  if (!testing::HasPlacesOrSkips(4)) return;
  ModelConfig model = NamedModel("deepseek-tiny").value();
  model.layers = 2;
  const auto world = [&](const Layout& layout, uint64_t seed) {
    return World(layout, seed, DType::kFloat32, 1, true, 1, /*offloads=*/false, model);
  };
  World saved = world({.dp = 4, .dp_replicate = 4, .ep = 2}, kSeed);
  RequireAllOk(saved.Train(3));
  Nodes nodes = MakeNodes(2);
  Stage(saved, nodes, 3, /*replicas=*/0);
  nodes.erase(nodes.begin());
  World resumed = world({.dp = 2}, /*seed=*/99);
  CHECK(Restore(resumed, nodes, "", model) == std::vector<std::string>(2, "memory"));
  CHECK(resumed.State() == saved.State());
}

TEST_CASE("the newer of memory and disk is taken, and of equals the memory") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const TempDir directory;
  World saved({.dp = 2});
  RequireAllOk(saved.Train(1));
  Nodes nodes = MakeNodes(2);
  RequireAllOk(saved.Save(directory.path(), 2));
  World resumed({.dp = 2}, /*seed=*/99);
  const std::string path = absl::StrCat(directory.path(), "/step_00000002");
  SECTION("an older copy") {
    Stage(saved, nodes, 1);
    CHECK(Restore(resumed, nodes, directory.path()) == std::vector<std::string>(2, path));
  }
  SECTION("one as new") {
    Stage(saved, nodes, 2);
    CHECK(Restore(resumed, nodes, directory.path()) == std::vector<std::string>(2, "memory"));
  }
  SECTION("all nodes are lost") {
    Stage(saved, nodes, 3);
    CHECK(Restore(resumed, MakeNodes(2), directory.path()) == std::vector<std::string>(2, path));
  }
  CHECK(resumed.State() == saved.State());
}

TEST_CASE("an offloaded state is copied from where it lies") {
  if (!testing::HasPlacesOrSkips(2)) return;
  World saved({.dp = 2}, kSeed, DType::kBFloat16, 1, true, /*zero_stage=*/1, /*offloads=*/true);
  RequireAllOk(saved.Train(2));
  Nodes nodes = MakeNodes(2);
  Stage(saved, nodes, 2);
  World resumed({.dp = 2}, /*seed=*/99, DType::kBFloat16);
  nodes.erase(nodes.begin() + 1);
  nodes.emplace_back(memfd_create("new", MFD_CLOEXEC));
  CHECK(Restore(resumed, nodes, "") == std::vector<std::string>(2, "memory"));
  CHECK(resumed.State() == saved.State());
}

}  // namespace
}  // namespace convene::worker
