// The closed formulas of the planner against the plan by which the engine allocates (PlanMemory),
// which memory_plan_test compares with what a real run takes.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/model/loss_head.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/explain.h"
#include "worker_runtime/planner/search.h"
#include "worker_runtime/schedule/chunk_layers.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/trainer/engine_parts.h"

namespace convene::worker {
namespace {

struct Case {
  const char* model;
  int64_t sequence_length;
  int64_t global_batch_size;
  Strategy strategy;
  DType dtype = DType::kBFloat16;
  bool float8 = false;
  DType reduce_dtype = DType::kFloat32;
  bool is_muon = false;
};

constexpr Recompute kSelective = Recompute::kSelective;
constexpr Recompute kFull = Recompute::kFull;
constexpr Recompute kParts = {.norms = true, .swiglu = true, .attention = true, .mlp = true};

Case WithMuon(Case c) {
  c.is_muon = true;
  return c;
}

// Layouts of all axes, of several families.
std::vector<Case> Cases() {
  return {
      {"llama-3.2-1b", 2048, 64, {.layout = {.dp = 8}, .micro_batch_size = 2}},
      {"llama-3.2-1b", 2048, 16, {.layout = {.dp = 8}, .micro_batch_size = 2}},
      {"llama-3.2-1b",
       2048,
       64,
       {.layout = {.dp = 8}, .zero_stage = 2, .micro_batch_size = 4, .recompute = kSelective}},
      {"llama-3-8b",
       8192,
       128,
       {.layout = {.dp = 64}, .zero_stage = 3, .micro_batch_size = 1, .recompute = kFull}},
      {"llama-3-8b",
       4096,
       64,
       {.layout = {.dp = 8, .dp_replicate = 8}, .zero_stage = 0, .recompute = kParts}},
      {"llama-3-8b", 4096, 64, {.layout = {.dp = 4, .tp = 8}, .micro_batch_size = 2}},
      {"llama-3-8b",
       4096,
       64,
       {.layout = {.dp = 4, .tp = 4}, .micro_batch_size = 2, .recompute = kSelective}},
      {"llama-3-70b", 4096, 256, {.layout = {.pp = 8, .dp = 16, .tp = 8}, .recompute = kSelective}},
      {"llama-3-70b",
       4096,
       256,
       {.layout = {.pp = 4, .dp = 16, .tp = 4, .dp_replicate = 4},
        .recompute = kSelective,
        .virtual_stages = 5}},
      {"llama-3-70b",
       8192,
       128,
       {.layout = {.dp = 64, .tp = 2}, .zero_stage = 3, .recompute = kFull}},
      {"llama-3-8b", 4096, 64, {.layout = {.pp = 4, .dp = 2}, .zero_bubble = true}},
      {"llama-3-8b",
       4096,
       64,
       {.layout = {.pp = 4, .dp = 2, .tp = 2}, .recompute = kSelective, .zero_bubble = true}},
      {"gemma3-4b",
       4096,
       64,
       {.layout = {.pp = 2, .dp = 2, .tp = 2}, .recompute = kFull, .zero_bubble = true}},
      {"deepseek-v3",
       4096,
       512,
       {.layout = {.pp = 8, .dp = 64, .tp = 2, .ep = 64},
        .recompute = kParts,
        .zero_bubble = true}},
      {"llama-3-8b", 32768, 16, {.layout = {.dp = 2, .tp = 2, .cp = 4}, .recompute = kSelective}},
      {"llama-3-8b", 32768, 16, {.layout = {.dp = 2, .tp = 4, .cp = 4}, .zero_stage = 2}},
      {"qwen3-8b", 4096, 64, {.layout = {.dp = 4, .tp = 4}, .micro_batch_size = 2}},
      {"gemma3-4b", 4096, 64, {.layout = {.dp = 8, .tp = 2}, .recompute = kSelective}},
      {"gpt2-1558m", 1024, 256, {.layout = {.dp = 8}, .micro_batch_size = 8}},
      {"gpt2-1558m", 1024, 256, {.layout = {.dp = 8}, .micro_batch_size = 4}, DType::kFloat32},
      {"mixtral-8x7b", 4096, 128, {.layout = {.dp = 16, .tp = 2, .ep = 8}, .recompute = kParts}},
      {"qwen3-30b-a3b", 4096, 256, {.layout = {.dp = 16, .ep = 16}, .zero_stage = 3}},
      {"deepseek-v3",
       4096,
       512,
       {.layout = {.pp = 8, .dp = 64, .tp = 2, .ep = 64}, .recompute = kFull}},
      {"olmo2-7b", 4096, 64, {.layout = {.dp = 8, .tp = 2}, .recompute = kSelective}},
      {"granite-3.1-8b", 4096, 64, {.layout = {.dp = 8}, .zero_stage = 2, .recompute = kParts}},
      {"phi-4", 8192, 64, {.layout = {.pp = 2, .dp = 4, .tp = 2}, .recompute = kSelective}},
      {"seed-oss-36b", 4096, 64, {.layout = {.dp = 4, .tp = 8}, .micro_batch_size = 2}},
      {"llama-3-8b", 8192, 128, {.layout = {.dp = 8}, .zero_stage = 3}, DType::kBFloat16, true},
      {"llama-3-8b", 8192, 128, {.layout = {.dp = 8}}, DType::kBFloat16, true, DType::kBFloat16},
      // ZeRO-3 with no rank to share with, and with those of cp alone.
      {"llama-3-8b", 4096, 8, {.layout = {.tp = 8}, .zero_stage = 3}, DType::kBFloat16, true},
      {"llama-3-8b", 32768, 16, {.layout = {.cp = 8}, .zero_stage = 3, .recompute = kSelective}},
  };
}

// Uneven rounds, mixed blocks, biases of experts, and Muon.
std::vector<Case> UnevenCases() {
  return {
      // Rounds of more micro batches than stages, one of fewer.
      {"llama-3-8b",
       4096,
       22,
       {.layout = {.pp = 3, .dp = 2}, .recompute = kSelective, .virtual_stages = 4}},
      {"llama-3-8b", 4096, 6, {.layout = {.pp = 4, .dp = 2}, .virtual_stages = 3}},
      // The first blocks are dense, the others have experts, on one rank.
      {"deepseek-v2-lite",
       4096,
       512,
       {.layout = {.dp = 8, .ep = 8}, .micro_batch_size = 8, .recompute = kParts}},
      {"glm-4.5-air",
       4096,
       1024,
       {.layout = {.dp = 128, .ep = 32}, .micro_batch_size = 8, .recompute = kFull}},
      // A slice of an expert is narrower than the residual stream, and has a bias.
      {"gpt-oss-20b", 8192, 16, {.layout = {.tp = 8}, .micro_batch_size = 16, .recompute = kFull}},
      WithMuon({"llama-3-8b", 4096, 64, {.layout = {.dp = 8}, .recompute = kSelective}}),
      WithMuon({"llama-3.2-1b", 2048, 16, {.layout = {.dp = 8}, .micro_batch_size = 2}}),
      WithMuon({"gpt2-1558m", 1024, 256, {.layout = {.dp = 8}}, DType::kFloat32}),
      WithMuon({"llama-3-8b", 4096, 64, {.layout = {.dp = 4, .tp = 4}, .recompute = kSelective}}),
      WithMuon(
          {"llama-3-70b", 4096, 64, {.layout = {.pp = 4, .dp = 8, .tp = 8}, .recompute = kFull}}),
      WithMuon(
          {"llama-3-8b", 4096, 64, {.layout = {.dp = 32}, .zero_stage = 3, .recompute = kFull}}),
      WithMuon(
          {"gemma2-27b", 4096, 64, {.layout = {.dp = 32}, .zero_stage = 2, .recompute = kFull}}),
      WithMuon({"qwen3-30b-a3b", 4096, 64, {.layout = {.dp = 16, .ep = 16}, .recompute = kFull}}),
      WithMuon({"deepseek-v2-lite",
                4096,
                64,
                {.layout = {.dp = 8, .tp = 2, .ep = 8}, .recompute = kFull}}),
  };
}

EngineOptions EngineOf(const Case& c) {
  const Layout& layout = c.strategy.layout;
  const ModelConfig model = *NamedModel(c.model);
  const PlanJob job = {.model = model,
                       .sequence_length = c.sequence_length,
                       .global_batch_size = c.global_batch_size};
  const MicroBatches micro = MicroBatchesOf(job, c.strategy);
  const int chunks = c.strategy.virtual_stages;
  const int kv_heads = std::max(1, model.kv_heads / layout.tp);
  return {
      .model = model,
      .update_rule = c.is_muon ? &MuonRule() : &AdamWRule(),
      .layout = layout,
      .dtype = c.dtype,
      .float8 = c.float8,
      .reduce_dtype = c.reduce_dtype,
      .recompute = c.strategy.recompute,
      .sequence_parallel = layout.tp > 1,
      .micro_batch_size = micro.size,
      .sequence_length = static_cast<int>(c.sequence_length),
      .context_method = kv_heads % layout.cp == 0 ? ContextMethod::kUlysses : ContextMethod::kRing,
      .microbatches = static_cast<int>(micro.count),
      .schedule = *MakeSchedule(ScheduleName(c.strategy), layout.pp, chunks == 1 ? 0 : chunks,
                                static_cast<int>(micro.count)),
      .chunk_layers = *CutLayers("", model.layers, layout.pp * chunks, HeadCost(model)),
      .zero_stage = c.strategy.zero_stage};
}

TEST_CASE("the planner's memory is the engine's plan, within 1 %, on every layout") {
  const std::unique_ptr<Device> device = Device::Cpu();
  std::vector<Case> cases = Cases();
  for (const Case& c : UnevenCases()) cases.push_back(c);
  for (const Case& c : cases) {
    const EngineOptions options = EngineOf(c);
    const std::vector<MemoryPlan> plans = PlanMemory(options, *device);
    const PlanJob job = {.model = options.model,
                         .sequence_length = c.sequence_length,
                         .global_batch_size = c.global_batch_size,
                         .dtype = c.dtype,
                         .float8 = c.float8,
                         .reduce_dtype = c.reduce_dtype,
                         .optimizer_states = c.is_muon ? 1 : 2,
                         .whole_matrices = c.is_muon,
                         .logits_bytes = LossLogitsBytes(DeviceKind::kCpu)};
    ModelCounts counts(job.model);
    for (int stage = 0; stage < c.strategy.layout.pp; ++stage) {
      const MemoryParts parts = MemoryOfStage(job, c.strategy, stage, counts);
      const auto planned = static_cast<double>(plans[stage].device_bytes);
      INFO(c.model << (c.is_muon ? " by Muon, " : ", ") << StrategyText(c.strategy) << ", stage "
                   << stage << ": planner " << parts.Total() / 1e6 << " MB (parameters "
                   << parts.parameters / 1e6 << ", gradients " << parts.gradients / 1e6
                   << ", optimizer " << parts.optimizer / 1e6 << ", activations "
                   << parts.activations / 1e6 << ", scratch " << parts.scratch / 1e6 << ", logits "
                   << parts.logits / 1e6 << ", communication " << parts.communication / 1e6
                   << "), engine\n"
                   << plans[stage].text);
      CHECK(parts.Total() == Approx(planned).epsilon(0.01));
    }
  }
}

}  // namespace
}  // namespace convene::worker
