// The trainer takes the configurations that the planner makes, and gets the planned layout.
#include <algorithm>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tools/base/files.h"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/options/elastic_layout.h"
#include "worker_runtime/options/load_options.h"
#include "worker_runtime/planner/search.h"
#include "worker_runtime/planner/train_yaml.h"

namespace convene::worker {
namespace {

// As convene-train --config loads it.
TrainOptions Loaded(const std::string& yaml) {
  const testing::TempDir directory;
  const std::string path = directory.File("train.yaml");
  REQUIRE_OK(WriteFileAtomic(path, yaml));
  const auto options = LoadOptions({"--config", path}, testing::LookupIn({{"HOME", "/tmp"}}));
  REQUIRE_OK(options);
  REQUIRE(options->has_value());
  return **options;
}

struct Case {
  const char* model;
  const char* gpu;
  int gpus;
  int64_t sequence_length;
  int64_t global_batch_size;
  bool float8 = false;
  DType dtype = DType::kBFloat16;
  DType reduce_dtype = DType::kFloat32;
  const char* optimizer = "adamw";
  Wishes wishes = {};
  const char* network = nullptr;  // the GPU's usual one
};

constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kFp32 = DType::kFloat32;

std::vector<Case> Cases() {
  return {
      {"llama-3-70b", "h100", 1024, 4096, 2048},
      {"llama-3-70b", "h100", 64, 8192, 256},
      {"llama-3-8b", "h100", 8, 4096, 512},
      {"llama-3-8b", "h100", 64, 4096, 512, true, DType::kBFloat16, DType::kBFloat16},
      {"llama-3-405b", "h100", 1024, 8192, 2048},
      {"llama-3-8b", "h100", 64, 131072, 32},
      {"llama-3-8b",
       "h200",
       16,
       4096,
       512,
       false,
       DType::kBFloat16,
       DType::kFloat32,
       "adamw",
       {.zero_stage = 0}},
      {"qwen3-235b-a22b", "h100", 256, 4096, 2048},
      {"deepseek-v3", "gb200", 512, 4096, 4096},
      {"mixtral-8x7b", "h200", 32, 4096, 1024},
      {"gpt2-124m", "l40s", 4, 1024, 512, false, DType::kBFloat16, DType::kFloat32, "muon"},
      {"gpt2-124m", "rtx-4090", 1, 1024, 512, false, DType::kFloat32},
      {"gemma3-12b", "a100", 16, 4096, 1024},
      // One sample of whole rows has more numbers than an int counts.
      {"llama-3-405b", "h200", 256, 65536, 256, false, kBf16, kFp32, "adamw", {}, "roce-100"},
      // Degrees that a search by itself leaves out.
      {"gpt2-124m", "h100", 1, 1024, 64, false, kBf16, kFp32, "adamw", {.zero_stage = 0}},
      {"gpt2-124m", "h100", 1, 1024, 64, false, kBf16, kFp32, "adamw", {.zero_stage = 3}},
      {"llama-3-8b", "h100", 8, 4096, 64, true, kBf16, kFp32, "adamw", {.tp = 8, .zero_stage = 3}},
      {"llama-3-8b", "h100", 8, 65536, 64, false, kBf16, kFp32, "adamw", {.cp = 8}},
      {"llama-3-8b", "h100", 8, 4096, 64, false, kBf16, kFp32, "adamw", {.cp = 8}},
      {"llama-3-8b", "h100", 16, 4096, 64, false, kBf16, kFp32, "adamw", {.tp = 16}},
      {"llama-3-8b",
       "h100",
       16,
       4096,
       64,
       false,
       kBf16,
       kFp32,
       "adamw",
       {.pp = 4, .virtual_stages = 7}},
  };
}

TEST_CASE("the trainer takes every planned configuration, and gets its layout") {
  const Case c = GENERATE(from_range(Cases()));
  const PlanJob job = {.model = *NamedModel(c.model),
                       .sequence_length = c.sequence_length,
                       .global_batch_size = c.global_batch_size,
                       .dtype = c.dtype,
                       .float8 = c.float8,
                       .reduce_dtype = c.reduce_dtype};
  Cluster cluster = {.gpu = *FindGpu(c.gpu), .gpus = c.gpus};
  cluster.network = *FindNetwork(c.network != nullptr ? c.network : cluster.gpu.network);
  const auto plans = Search(job, cluster, c.wishes);
  REQUIRE_OK(plans);
  REQUIRE(!plans->ranked.empty());
  for (const Estimate& estimate : plans->ranked) {
    const Strategy& strategy = estimate.strategy;
    const std::string yaml =
        TrainYaml({.model = c.model, .optimizer = c.optimizer, .steps = 10}, job, strategy);
    INFO(yaml);
    const TrainOptions options = Loaded(yaml);
    const auto decision = DecideLayout(options, c.gpus, /*job_has_begun=*/false);
    REQUIRE_OK(decision);
    CHECK(decision->layout == strategy.layout);
    CHECK(options.model_name == c.model);
    CHECK(options.steps == 10);
    CHECK(options.zero_stage == strategy.zero_stage);
    CHECK(options.micro_batch_size == strategy.micro_batch_size);
    CHECK(options.recompute == strategy.recompute);
    CHECK(options.sequence_length == c.sequence_length);
    CHECK(options.global_batch_size == c.global_batch_size);
    CHECK(options.float8 == c.float8);
    CHECK(options.precision == c.dtype);
    CHECK(options.reduce_dtype == c.reduce_dtype);
    CHECK(std::string(options.optimizer->name()) == c.optimizer);
    const auto pipeline = PipelineOf(options, decision->layout);
    REQUIRE_OK(pipeline);
    CHECK(static_cast<int>(pipeline->schedule.placement.size()) ==
          strategy.layout.pp * strategy.virtual_stages);
  }
}

// A plan of the fewest GPUs, of a few counts, on which the model fits.
Plans SmallestPlans(const PlanJob& job) {
  for (const int gpus : {1, 8, 64, 512, 2048}) {
    const Gpu gpu = *FindGpu("h200");
    const Cluster cluster = {.gpu = gpu, .network = *FindNetwork(gpu.network), .gpus = gpus};
    auto plans = Search(job, cluster, {});
    REQUIRE_OK(plans);
    if (!plans->ranked.empty()) return *std::move(plans);
  }
  FAIL("no layout fits");
  return {};
}

TEST_CASE("the trainer takes the plan of each model that has a name") {
  for (const std::string& name : ModelNames()) {
    INFO(name);
    const ModelConfig model = *NamedModel(name);
    const PlanJob job = {
        .model = model,
        .sequence_length = model.family->learned_positions ? std::min(1024, model.positions) : 1024,
        .global_batch_size = 4096};
    const Plans plans = SmallestPlans(job);
    const Strategy& strategy = plans.ranked.front().strategy;
    const std::string yaml =
        TrainYaml({.model = name, .optimizer = "adamw", .steps = 10}, job, strategy);
    INFO(yaml);
    const TrainOptions options = Loaded(yaml);
    const auto decision =
        DecideLayout(options, strategy.layout.world_size(), /*job_has_begun=*/false);
    REQUIRE_OK(decision);
    CHECK(decision->layout == strategy.layout);
    CHECK(options.model_name == name);
    CHECK(options.recompute == strategy.recompute);
  }
}

}  // namespace
}  // namespace convene::worker
