// The choice, against the tables and trees of the seeds (shared/seeds).
#include "worker_runtime/planner/search.h"

#include <algorithm>
#include <map>

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/collectives.h"
#include "worker_runtime/planner/explain.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/lower.h"
#include "worker_runtime/schedule/simulate.h"

namespace convene::worker {
namespace {

Cluster ClusterOf(const std::string& gpu, int gpus) {
  Cluster cluster = {.gpu = *FindGpu(gpu), .gpus = gpus};
  cluster.network = *FindNetwork(cluster.gpu.network);
  return cluster;
}

PlanJob JobOf(const std::string& model, int64_t sequence_length, int64_t batch) {
  return {
      .model = *NamedModel(model), .sequence_length = sequence_length, .global_batch_size = batch};
}

Plans PlansOf(const PlanJob& job, const Cluster& cluster, const Wishes& wishes = {}) {
  const auto plans = Search(job, cluster, wishes);
  REQUIRE_OK(plans);
  return *plans;
}

double Days(const PlanJob& job, const Estimate& estimate, double tokens) {
  const auto a_step =
      static_cast<double>(job.global_batch_size) * static_cast<double>(job.sequence_length);
  return tokens / a_step * estimate.step_seconds() / 86400;
}

bool Fits(const Plans& plans, Rung rung) {
  return plans.rungs[static_cast<size_t>(rung)].best.has_value();
}

TEST_CASE("70 billion parameters take 1,170 GB on one GPU") {
  // Seed 001: 140 GB of bf16 parameters, 140 of gradients, 840 of optimizer state, and 50 to 100 of
  // activations with recomputation. Gradients here are fp32: 140 GB more, which the seed has not.
  PlanJob job = JobOf("llama-3-70b", 4096, 8);
  const auto parameters = static_cast<double>(ParameterCount(job.model));
  const double state = UnshardedBytes(job) - 2 * parameters;
  CHECK(state == Approx(1120e9).epsilon(0.02));
  ModelCounts counts(job.model);
  const Strategy strategy = {.micro_batch_size = 8, .recompute = Recompute::kFull};
  const MemoryParts parts = MemoryOfStage(job, strategy, 0, counts);
  CHECK(state + parts.activations + parts.scratch + parts.logits == Approx(1170e9).epsilon(0.05));
}

TEST_CASE("tp8 x pp8 x dp16 trains 70B on 1,024 H100, in about 24 days for 2T tokens") {
  const PlanJob job = JobOf("llama-3-70b", 4096, 2048);
  const Cluster cluster = ClusterOf("h100", 1024);
  const Plans seed = PlansOf(job, cluster, {.tp = 8, .pp = 8, .cp = 1});
  REQUIRE(!seed.ranked.empty());
  CHECK(seed.ranked.front().strategy.layout.dp == 16);
  // The seed counts 40 % of the peak. Its days are 24.
  CHECK(Days(job, seed.ranked.front(), 2e12) == Approx(24).epsilon(0.1));
  const Plans plans = PlansOf(job, cluster);
  const Estimate& best = plans.ranked.front();
  CHECK(RungOf(best.strategy) == Rung::kTensorPipeline);
  CHECK(best.strategy.layout.tp <= 8);
  CHECK(best.step_seconds() > 0.8 * seed.ranked.front().step_seconds());
  // Sharding alone is slower: its gathers grow with the ranks.
  REQUIRE(Fits(plans, Rung::kZero3));
  CHECK(plans.rungs[static_cast<size_t>(Rung::kZero3)].best->step_seconds() >
        1.05 * best.step_seconds());
}

TEST_CASE("the seed's memory of 70B by technique") {
  // Seed 001: of 1,170 GB tp8 x pp8 leave 18 GB a GPU, ZeRO-1 12, ZeRO-2 with flash attention 8 to
  // 10. Activations of the seed's run come on top, as do fp32 gradients.
  const PlanJob job = JobOf("llama-3-70b", 4096, 2048);
  ModelCounts counts(job.model);
  const auto state = [&](int zero) {
    Strategy strategy = {.layout = {.pp = 8, .dp = 16, .tp = 8}, .zero_stage = zero};
    if (zero == 0) strategy.layout.dp_replicate = 16;
    const MemoryParts parts = MemoryOfStage(job, strategy, 1, counts);
    return (parts.parameters + parts.gradients + parts.optimizer) / 1e9;
  };
  CHECK(state(0) == Approx(18 + 2.2).epsilon(0.1));
  CHECK(state(1) == Approx(6 + 1.1).epsilon(0.2));
  CHECK(state(2) < state(1));
  CHECK(state(3) < state(2));
}

TEST_CASE("the strategy by the size of the model") {
  // Seed 004's table: < 1B DDP; 1B-10B on 4-16 GPUs ZeRO-2; 10B-70B on 8-64 ZeRO-3 and tp; 70B-200B
  // on 32-128 tp, pp; 200B-1T on 128-1024 with experts tp, pp, ep.
  const auto rung_of = [](const Plans& plans) { return RungOf(plans.ranked.front().strategy); };
  const Plans small = PlansOf(JobOf("gpt2-355m", 1024, 512), ClusterOf("a100", 8));
  CHECK(Fits(small, Rung::kCopies));
  CHECK(rung_of(small) <= Rung::kZero1);

  const Plans billions = PlansOf(JobOf("llama-3-8b", 4096, 128), ClusterOf("h100", 8));
  CHECK_FALSE(Fits(billions, Rung::kCopies));
  CHECK(rung_of(billions) == Rung::kZero2);

  const Plans tens = PlansOf(JobOf("llama-3-70b", 8192, 256), ClusterOf("h100", 64));
  CHECK_FALSE(Fits(tens, Rung::kCopies));
  CHECK_FALSE(Fits(tens, Rung::kZero1));
  CHECK_FALSE(Fits(tens, Rung::kZero2));
  CHECK(Fits(tens, Rung::kZero3));
  CHECK(Fits(tens, Rung::kTensor));

  const Plans hundreds = PlansOf(JobOf("llama-3-405b", 8192, 1024), ClusterOf("h100", 1024));
  CHECK(rung_of(hundreds) == Rung::kTensorPipeline);
  CHECK(hundreds.ranked.front().strategy.layout.tp == 8);

  const Plans experts = PlansOf(JobOf("qwen3-235b-a22b", 4096, 2048), ClusterOf("h100", 256));
  CHECK(experts.ranked.front().strategy.layout.pp > 1);
  CHECK(experts.ranked.front().strategy.layout.ep > 1);
}

TEST_CASE("a model that one GPU holds is trained by copies or shards alone") {
  // Seed 000: it fits: DDP. It does not: FSDP, ZeRO. The layer is the bottleneck: tp. Deep and well
  // connected: pp. A large cluster: all three.
  const Plans plans = PlansOf(JobOf("gpt2-124m", 1024, 512), ClusterOf("h100", 16));
  const Layout& layout = plans.ranked.front().strategy.layout;
  CHECK(layout.tp == 1);
  CHECK(layout.pp == 1);
  const Plans one = PlansOf(JobOf("gpt2-124m", 1024, 64), ClusterOf("rtx-4090", 1));
  CHECK(RungOf(one.ranked.front().strategy) == Rung::kCopies);
}

TEST_CASE("the search is exhaustive, and keeps its order") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 256);
  const Cluster cluster = ClusterOf("h100", 32);
  const Plans plans = PlansOf(job, cluster);
  ModelCounts counts(job.model);
  const double best = plans.ranked.front().step_seconds();
  int seen = 0;
  for (const int tp : {1, 2, 4, 8}) {
    for (const int pp : {1, 2, 4}) {
      for (const int zero : {1, 2, 3}) {
        const Strategy strategy = {.layout = {.pp = pp, .dp = 32 / tp / pp, .tp = tp},
                                   .zero_stage = zero,
                                   .recompute = Recompute::kSelective};
        REQUIRE(Legal(job, strategy, counts));
        const Estimate estimate = EstimateOf(job, cluster, strategy, counts);
        if (estimate.memory.Total() > UsableBytes(estimate.memory, cluster)) continue;
        ++seen;
        CHECK(estimate.step_seconds() > 0.94 * best);
      }
    }
  }
  CHECK(seen > 10);
  for (const Estimate& estimate : plans.ranked) {
    CHECK(estimate.strategy.layout.world_size() == 32);
    CHECK(estimate.memory.Total() <= UsableBytes(estimate.memory, cluster));
    CHECK(Legal(job, estimate.strategy, counts));
    CHECK(estimate.step_seconds() >= 0.85 * best);
  }
}

TEST_CASE("the walk explains the first of the ranking") {
  const Cluster cluster = ClusterOf("h100", 64);
  const PlanJob job = JobOf("llama-3-70b", 8192, 256);
  const Plans plans = PlansOf(job, cluster);
  const std::vector<std::string> lines = Explain(job, cluster, plans);
  const std::string chosen = StrategyText(plans.ranked.front().strategy);
  int choices = 0;
  for (const std::string& line : lines) {
    if (line.find("this is the choice") == line.npos) continue;
    ++choices;
    CHECK_THAT(line, Catch::Contains(chosen));
  }
  CHECK(choices == 1);
  // Each rung's best is the search's, so the choice is the best of one of them.
  const Estimate& best = plans.ranked.front();
  const RungResult& rung = plans.rungs[static_cast<size_t>(RungOf(best.strategy))];
  CHECK(StrategyText(rung.best->strategy) == chosen);
  CHECK_FALSE(Strengths(job, cluster, best).empty());
  CHECK_FALSE(Limits(job, cluster, best).empty());
}

TEST_CASE("tensor-parallel pairs in machines of seven are no strength, and cross the network") {
  Cluster cluster = ClusterOf("h100", 56);
  SetNode(7, &cluster.gpu);
  const PlanJob job = JobOf("llama-3-70b", 4096, 256);
  const Plans plans = PlansOf(job, cluster, {.tp = 2});
  REQUIRE(!plans.ranked.empty());
  for (const std::string& line : Strengths(job, cluster, plans.ranked.front())) {
    CHECK_THAT(line, !Catch::Contains("stays inside"));
  }
  CHECK(plans.ranked.front().time.axes.front().axis == "tp");
  CHECK(plans.ranked.front().time.axes.front().link == "ndr400");
}

TEST_CASE(
    "of a model with experts, whole copies and shards are the layouts that cut no expert off") {
  const PlanJob job = JobOf("qwen3-30b-a3b", 4096, 1024);
  const Cluster cluster = ClusterOf("h100", 16);
  const Plans plans = PlansOf(job, cluster);
  // 512 GiB do not fit a GPU of 80.
  CHECK_FALSE(Fits(plans, Rung::kCopies));
  REQUIRE(Fits(plans, Rung::kExperts));
  CHECK(plans.rungs[static_cast<size_t>(Rung::kExperts)].best->strategy.layout.ep > 1);
  for (const Rung rung : {Rung::kCopies, Rung::kZero1, Rung::kZero2, Rung::kZero3}) {
    CHECK(plans.rungs[static_cast<size_t>(rung)].leanest->strategy.layout.ep == 1);
  }
  const std::vector<std::string> lines = Explain(job, cluster, plans);
  CHECK_THAT(lines[1], Catch::StartsWith("DDP: each GPU holds everything. It does not fit"));
  CHECK_THAT(lines[5], Catch::StartsWith("ep: ranks share the experts. It fits"));
}

TEST_CASE("stages in several machines send over the network, though the first two share one") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 1024);
  ModelCounts counts(job.model);
  const auto link = [&](int gpus) {
    const Strategy strategy = {.layout = {.pp = 4, .dp = gpus / 4}};
    return EstimateOf(job, ClusterOf("h100", gpus), strategy, counts).time.axes.front();
  };
  CHECK(link(8).axis == "pp");
  CHECK(link(8).link == "NVLink 4");
  CHECK(link(16).link == "ndr400");
}

TEST_CASE("what does not fit is told what to change") {
  const Cluster cluster = ClusterOf("rtx-4090", 8);
  const PlanJob job = JobOf("llama-3-70b", 4096, 64);
  const Plans plans = PlansOf(job, cluster);
  CHECK(plans.ranked.empty());
  const std::vector<std::string> ways = WaysToFit(job, cluster, plans);
  REQUIRE(ways.size() >= 3);
  CHECK_THAT(ways[1], Catch::Contains("More GPUs: about"));
  CHECK_THAT(ways[2], Catch::Contains("--offload"));
  CHECK_THAT(ways.back(), Catch::Contains("--optimizer muon"));
  // Muon has no --offload, and is not offered twice.
  PlanJob muon = job;
  muon.optimizer_states = 1;
  muon.whole_matrices = true;
  for (const std::string& way : WaysToFit(muon, cluster, PlansOf(muon, cluster))) {
    CHECK_THAT(way, !Catch::Contains("--offload") && !Catch::Contains("muon"));
  }
  // Of many shards the state is small, and matrices are as large as before.
  PlanJob wide = JobOf("llama-3-405b", 4096, 2048);
  const Cluster many = ClusterOf("rtx-4090", 2048);
  for (const std::string& way : WaysToFit(wide, many, PlansOf(wide, many, {.tp = 1, .pp = 1}))) {
    CHECK_THAT(way, !Catch::Contains("muon"));
  }
}

TEST_CASE("GPUs that would hold more copies of the state are no way to fit") {
  const PlanJob job = JobOf("llama-3-70b", 4096, 1024);
  const auto way_of = [&](int gpus, const Wishes& wishes) {
    const Cluster cluster = ClusterOf("h100", gpus);
    return WaysToFit(job, cluster, PlansOf(job, cluster, wishes))[1];
  };
  const Wishes copies = {.tp = 1, .pp = 1, .zero_stage = 0};
  CHECK_THAT(way_of(8, copies), Catch::Contains("More GPUs: about 17 have room"));
  CHECK_THAT(way_of(8, copies), Catch::EndsWith("--tp-size and --pp-size to the plan."));
  CHECK(way_of(8, copies) == way_of(64, copies));
  // Whole parameters and gradients do not fit, however many ranks share the optimizer's state.
  CHECK_THAT(way_of(8, {.tp = 1, .pp = 1, .zero_stage = 1}), Catch::Contains("to the plan"));
  CHECK_THAT(way_of(8, {}), Catch::EndsWith("if each keeps its part of it."));
}

TEST_CASE("a full memory forbids less recomputation only where there is some") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 128);
  const Cluster cluster = ClusterOf("h100", 8);
  Estimate estimate = PlansOf(job, cluster).ranked.front();
  estimate.memory.activations += 0.9 * cluster.gpu.memory_bytes - estimate.memory.Total();
  const auto last_limit = [&](const Recompute& recompute) {
    estimate.strategy.recompute = recompute;
    return Limits(job, cluster, estimate).back();
  };
  CHECK(last_limit(Recompute::kNone) == "90 % of the memory: a larger micro batch has no room.");
  CHECK(last_limit(Recompute::kFull) ==
        "90 % of the memory: a larger micro batch or less recomputation has no room.");
}

TEST_CASE("what is lent leaves no rest below nothing") {
  const PlanJob job = {.model = *NamedModel("qwen2.5-14b"),
                       .sequence_length = 100,
                       .global_batch_size = 1024,
                       .dtype = DType::kFloat32};
  ModelCounts counts(job.model);
  const Strategy strategy = {.layout = {.dp = 128, .tp = 4, .dp_replicate = 64},
                             .micro_batch_size = 8};
  CHECK(MemoryOfStage(job, strategy, 0, counts).activations >= 0);
}

TEST_CASE("what is asked for stays, and what is impossible is refused") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 256);
  const Plans plans = PlansOf(job, ClusterOf("h100", 32),
                              {.tp = 2, .pp = 4, .zero_stage = 1, .micro_batch_size = 2});
  for (const Estimate& estimate : plans.ranked) {
    CHECK(estimate.strategy.layout.tp == 2);
    CHECK(estimate.strategy.layout.pp == 4);
    CHECK(estimate.strategy.zero_stage == 1);
    CHECK(estimate.strategy.micro_batch_size == 2);
  }
  const auto odd = Search(job, ClusterOf("h100", 32), {.tp = 3});
  CHECK(absl::IsInvalidArgument(odd.status()));
  CHECK_THAT(std::string(odd.status().message()), Catch::Contains("no layout of 32 GPUs"));
  PlanJob float8 = job;
  float8.float8 = true;
  CHECK(absl::IsInvalidArgument(Search(float8, ClusterOf("a100", 32)).status()));
}

TEST_CASE("each degree that the trainer takes has a plan where it is asked for") {
  struct Asked {
    const char* gpu;
    int gpus;
    Wishes wishes;
  };
  const Asked asked = GENERATE(values<Asked>({
      {"h100", 1, {.zero_stage = 0}},
      {"h100", 1, {.zero_stage = 3}},
      {"h100", 8, {.tp = 8, .zero_stage = 0}},
      {"h100", 8, {.tp = 8, .zero_stage = 3}},
      {"h100", 16, {.tp = 16}},
      {"h100", 16, {.pp = 4, .virtual_stages = 7}},
      {"h100", 8, {.cp = 8}},
      {"h100", 8, {.cp = 8, .zero_stage = 0}},
      {"h100", 8, {.cp = 8, .zero_stage = 3}},
      {"gb200", 64, {.tp = 1, .pp = 1, .dp_replicate = 4}},
  }));
  INFO(asked.gpus << " " << asked.gpu);
  const PlanJob job = JobOf("llama-3.2-1b", 4096, 256);
  const PlanJob deep = JobOf("llama-3-8b", 4096, 256);
  const auto plans = Search(asked.wishes.virtual_stages.has_value() ? deep : job,
                            ClusterOf(asked.gpu, asked.gpus), asked.wishes);
  REQUIRE_OK(plans);
  REQUIRE(!plans->ranked.empty());
  for (const Estimate& plan : plans->ranked) {
    const Strategy& strategy = plan.strategy;
    CHECK(strategy.layout.tp == asked.wishes.tp.value_or(strategy.layout.tp));
    CHECK(strategy.zero_stage == asked.wishes.zero_stage.value_or(strategy.zero_stage));
    CHECK(strategy.virtual_stages == asked.wishes.virtual_stages.value_or(strategy.virtual_stages));
  }
}

TEST_CASE("context-parallel ranks alone share what data-parallel ones do") {
  const Plans plans =
      PlansOf(JobOf("llama-3-8b", 65536, 32), ClusterOf("h100", 8), {.tp = 1, .pp = 1, .cp = 8});
  REQUIRE(!plans.ranked.empty());
  CHECK(plans.rungs[static_cast<size_t>(Rung::kZero3)].best.has_value());
}

TEST_CASE("a layout is slower on a slower network") {
  const PlanJob job = JobOf("llama-3-70b", 4096, 1024);
  ModelCounts counts(job.model);
  const Strategy strategy = {.layout = {.pp = 4, .dp = 4, .tp = 8},
                             .recompute = Recompute::kSelective};
  Cluster cluster = ClusterOf("h100", 128);
  double last = 0;
  for (const char* const network : {"xdr800", "ndr400", "hdr200", "eth-100", "eth-25"}) {
    cluster.network = *FindNetwork(network);
    const double seconds = EstimateOf(job, cluster, strategy, counts).step_seconds();
    INFO(network << " " << seconds);
    CHECK(seconds > last);
    last = seconds;
  }
}

TEST_CASE("every model of the trainer has a plan") {
  for (const std::string& name : ModelNames()) {
    INFO(name);
    const PlanJob job = JobOf(name, 256, 256);
    if (job.model.hidden_size > 8192) continue;
    const auto plans = Search(job, ClusterOf("gb200", 128));
    REQUIRE_OK(plans);
    CHECK(!plans->ranked.empty());
  }
}

TEST_CASE("slots and bubble are those of the schedules") {
  const int ranks = GENERATE(2, 3, 4, 8);
  const int chunks = GENERATE(1, 2, 3, 10);
  const int microbatches = GENERATE(1, 2, 5, 7, 8, 11, 24);
  const Strategy strategy = {.layout = {.pp = ranks}, .virtual_stages = chunks};
  const Schedule schedule =
      *MakeSchedule(ScheduleName(strategy), ranks, chunks == 1 ? 0 : chunks, microbatches);
  const std::vector<RankPlan> plans = *Lower(schedule);
  for (int rank = 0; rank < ranks; ++rank) {
    INFO(ranks << " ranks, " << chunks << " chunks, " << microbatches << " micro batches, rank "
               << rank);
    CHECK(SavedSlots(strategy, rank, microbatches) == plans[rank].saved.count);
  }
  const Timeline timeline = *Simulate(schedule);
  double end = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Compute& last = schedule.ranks[rank].back();
    end = std::max(end, timeline.start[rank].back() + TimeOf(last.kind, {}));
  }
  const double work = 3.0 * microbatches * chunks;
  INFO(ranks << " ranks, " << chunks << " chunks, " << microbatches << " micro batches");
  CHECK(end - work == Approx(3.0 * BubblePasses(strategy, microbatches)));
}

TEST_CASE("chunks that wait for few micro batches to come round are not chosen") {
  const PlanJob job = JobOf("llama-3-70b", 4096, 64);
  const Plans plans = PlansOf(job, ClusterOf("h100", 512));
  REQUIRE(!plans.ranked.empty());
  for (const Estimate& plan : plans.ranked) {
    INFO(StrategyText(plan.strategy));
    const bool is_short = MicroBatchesOf(job, plan.strategy).count < plan.strategy.layout.pp;
    CHECK_FALSE((is_short && plan.strategy.virtual_stages > 1));
  }
}

TEST_CASE("slots and bubble are those of zb-h1") {
  const int ranks = GENERATE(2, 4, 8);
  const int microbatches = GENERATE(8, 9, 24);
  const PlanJob job = JobOf("llama-3-8b", 4096, microbatches);
  const Strategy strategy = {.layout = {.pp = ranks}, .zero_bubble = true};
  const Schedule schedule = *MakeSchedule(ScheduleName(strategy), ranks, 0, microbatches);
  const std::vector<RankPlan> plans = *Lower(schedule);
  for (int rank = 0; rank < ranks; ++rank) {
    INFO(ranks << " ranks, " << microbatches << " micro batches, rank " << rank);
    CHECK(SavedSlots(strategy, rank, microbatches) == plans[rank].saved.count);
    CHECK(DeferredSlots(strategy, rank, microbatches) == plans[rank].deferred.count);
  }
  // The step's bubble: that of 1f1b without two weight halves for each rank but one.
  ModelCounts counts(job.model);
  const Cluster cluster = ClusterOf("h100", ranks);
  Strategy whole = strategy;
  whole.zero_bubble = false;
  const double saved = EstimateOf(job, cluster, whole, counts).time.bubble -
                       EstimateOf(job, cluster, strategy, counts).time.bubble;
  const ModelCounts::Units& units = counts.Of(1, 1);
  const double layers = 32.0 / ranks;
  const double products = 2 * 4096 * units.dense.multiplied * layers;
  const double seconds = products / (0.86 * cluster.gpu.sustained * cluster.gpu.bf16);
  CHECK(saved / (ranks - 1) > 2 * 0.8 * seconds);
  CHECK(saved / (ranks - 1) < 2 * 1.4 * seconds);
}

TEST_CASE(
    "zb-h1 is planned where its bubble is worth its memory, and never with few micro batches") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 16);
  Wishes wishes = {.tp = 1, .pp = 8, .virtual_stages = 1};
  const auto plans = Search(job, ClusterOf("h200", 8), wishes);
  REQUIRE_OK(plans);
  CHECK(plans->ranked.front().strategy.zero_bubble);
  wishes.zero_bubble = false;
  const auto whole = Search(job, ClusterOf("h200", 8), wishes);
  REQUIRE_OK(whole);
  CHECK(whole->ranked.front().time.total > 1.1 * plans->ranked.front().time.total);
  CHECK(!Search(JobOf("llama-3-8b", 4096, 4), ClusterOf("h200", 8),
                {.tp = 1, .pp = 8, .zero_bubble = true})
             .ok());
}

TEST_CASE("NCCL's buffers leave less room where experts exchange tokens with many ranks") {
  const PlanJob job = JobOf("qwen3-30b-a3b", 4096, 64);
  Cluster cluster = ClusterOf("rtx-4090", 8);
  ModelCounts counts(job.model);
  const auto usable = [&](int ep) {
    const Strategy strategy = {.layout = {.dp = 8, .ep = ep}, .zero_stage = 3};
    return UsableBytes(EstimateOf(job, cluster, strategy, counts).memory, cluster);
  };
  CHECK(usable(1) == Approx(0.9 * cluster.gpu.memory_bytes));
  CHECK(usable(8) < 0.85 * cluster.gpu.memory_bytes);
  // CPUs have no NCCL.
  cluster.gpu.is_cpu = true;
  CHECK(usable(8) == Approx(0.9 * cluster.gpu.memory_bytes));
}

TEST_CASE(
    "an all-reduce of many nodes goes by a tree, on a GPU, and copies that are asked for stay") {
  Cluster cluster = ClusterOf("h100", 512);
  const RankGroup far = GroupIn(cluster, 8, 64);
  // 64 rings of hops take four times as long as six levels of a tree, for a message this small.
  CHECK(AllReduceSeconds(cluster, far, 1e6) < GatherSeconds(cluster, far, 1e6));
  const RankGroup near = GroupIn(cluster, 1, 8);
  CHECK(AllReduceSeconds(cluster, near, 1e6) == 2 * GatherSeconds(cluster, near, 1e6));
  cluster.gpu.is_cpu = true;
  CHECK(AllReduceSeconds(cluster, far, 1e6) == 2 * GatherSeconds(cluster, far, 1e6));
  for (const int copies : {1, 4}) {
    const Plans plans = PlansOf(JobOf("llama-3-8b", 4096, 512), ClusterOf("h100", 128),
                                {.tp = 8, .dp_replicate = copies, .zero_stage = 1});
    for (const Estimate& plan : plans.ranked) {
      CHECK(plan.strategy.layout.dp_replicate == copies);
    }
  }
}

TEST_CASE("weights that are gathered after the step hide nowhere") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 1024);
  const Cluster cluster = ClusterOf("h100", 128);
  ModelCounts counts(job.model);
  const Strategy strategy = {.layout = {.dp = 128}, .zero_stage = 1};
  const auto exposed = [&](bool hides) {
    Efficiency efficiency;
    efficiency.hides_gathers = hides;
    return EstimateOf(job, cluster, strategy, counts, efficiency).time.axes.front().exposed;
  };
  // 16 GB of weights do not travel faster than NVLink.
  CHECK(exposed(false) > exposed(true) + 16e9 / 450e9);
}

TEST_CASE("an impossible layout is told by the degree that stands in its way") {
  const PlanJob job = JobOf("llama-3-8b", 4096, 64);
  const auto said = [&](const Wishes& wishes) {
    return std::string(Search(job, ClusterOf("h100", 8), wishes).status().message());
  };
  CHECK(said({.tp = 16, .zero_stage = 1}).find(". Without --tp-size 16 some are. ") !=
        std::string::npos);
  CHECK(said({.tp = 4, .pp = 4}).find("Without --tp-size 4, or without --pp-size 4 some are. ") !=
        std::string::npos);
  CHECK(said({.pp = 1, .zero_bubble = true})
            .find("Without --pp-size 1, or without --zero-bubble yes some are. ") !=
        std::string::npos);
  CHECK(said({.tp = 3}).find("zb-h1 takes") == std::string::npos);
  const auto alone = Search(job, ClusterOf("h100", 1), {.zero_bubble = true});
  CHECK_THAT(std::string(alone.status().message()),
             Catch::Contains("no layout of 1 GPU is legal") &&
                 Catch::Contains("Without --zero-bubble yes some are. ") &&
                 Catch::Contains("zb-h1 takes two stages or more"));
  // Each is impossible by itself.
  CHECK(said({.tp = 3, .pp = 5}).find("Without") == std::string::npos);
  CHECK(said({.tp = 3, .pp = 5}).find("no layout of 8 GPUs is legal") == 0);
}

}  // namespace
}  // namespace convene::worker
