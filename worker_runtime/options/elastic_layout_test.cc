#include "worker_runtime/options/elastic_layout.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/options/load_options.h"
#include "worker_runtime/planner/search.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// llama-tiny (8 layers, 16 heads, 8 key and value heads), 32 samples a step, with these flags.
TrainOptions Options(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--data=a.txt", "--token-cache-dir=/cache"});
  const auto options =
      LoadOptions(flags, [](const std::string&) { return std::optional<std::string>(); });
  REQUIRE_OK(options);
  return **options;
}

std::string LineOf(const TrainOptions& options, int world_size) {
  const auto decision = DecideLayout(options, world_size, /*job_has_begun=*/true);
  REQUIRE_OK(decision);
  return decision->why;
}

absl::Status AtStart(const std::vector<std::string>& flags, int world_size) {
  return DecideLayout(Options(flags), world_size, /*job_has_begun=*/false).status();
}

// The file of a GPipe schedule.
std::string CsvOf(int ranks, int microbatches) {
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const char* kind : {"F", "B"}) {
      for (int i = 0; i < microbatches; ++i) absl::StrAppend(&text, rank, kind, i, ",");
    }
    text.back() = '\n';
  }
  return text;
}

TEST_CASE(
    "experts are spread over as many ranks as were asked for, or as are legal of those left") {
  // moe-tiny has 8 experts.
  TrainOptions options = Options({"--model=moe-tiny", "--ep-size=4"});
  const auto ep_of = [&](int world) {
    const auto decision = DecideLayout(options, world, /*job_has_begun=*/true);
    REQUIRE_OK(decision);
    CHECK(decision->layout.dp == world);
    CHECK_OK(ValidateOptions(options, decision->layout));
    CHECK((decision->why.find("asked ep4") == std::string::npos) == (decision->layout.ep == 4));
    return decision->layout.ep;
  };
  for (const ElasticLayout way : {ElasticLayout::kKeep, ElasticLayout::kBest}) {
    options.elastic_layout = way;
    CHECK(ep_of(8) == 4);
    CHECK(ep_of(4) == 4);
    CHECK(ep_of(7) == 1);
    CHECK(ep_of(6) == 2);
    CHECK(ep_of(3) == 1);
    CHECK(ep_of(1) == 1);
  }
  CHECK_STATUS(AtStart({"--model=moe-tiny", "--ep-size=4"}, 6), kInvalid, "does not come out even");
  CHECK_OK(AtStart({"--model=moe-tiny", "--ep-size=4"}, 8));
}

TEST_CASE("on any number of workers keep keeps, and best is legal") {
  for (const int tp : {1, 2, 4}) {
    for (const int pp : {1, 2, 4}) {
      for (const int dp : {0, 1, 3, 4}) {
        TrainOptions options =
            Options({absl::StrCat("--tp-size=", tp), absl::StrCat("--pp-size=", pp)});
        options.dp_size = dp;
        for (int world = 1; world <= 17; ++world) {
          CAPTURE(tp, pp, dp, world);
          options.elastic_layout = ElasticLayout::kKeep;
          const auto kept = DecideLayout(options, world, /*job_has_begun=*/true);
          REQUIRE_OK(kept);
          const bool has_replica = world >= tp * pp;
          if (has_replica) {
            const int rows = dp > 0 ? std::min(dp, world / (tp * pp)) : world / (tp * pp);
            CHECK(kept->layout == Layout{.pp = pp, .dp = rows, .tp = tp});
            CHECK_OK(ValidateOptions(options, kept->layout));
            const bool is_asked = kept->layout.world_size() == world && (dp == 0 || dp == rows);
            CHECK(kept->why.empty() == is_asked);
            CHECK(kept->depends_on_hardware == (dp == 0 || dp != rows));
          }
          // Before the job has begun, fewer or more workers than were asked for are a mistake.
          const auto at_start = DecideLayout(options, world, /*job_has_begun=*/false);
          CHECK(at_start.ok() == (dp == 0 ? has_replica : world == tp * pp * dp));
          if (at_start.ok()) CHECK_FALSE(at_start->depends_on_hardware);

          options.elastic_layout = ElasticLayout::kBest;
          for (const bool has_begun : {false, true}) {
            const auto best = DecideLayout(options, world, has_begun);
            REQUIRE_OK(best);
            CHECK_OK(ValidateOptions(options, best->layout));
            CHECK(best->layout.world_size() <= world);
            CHECK(best->depends_on_hardware);
            if (!has_replica) CHECK(kept->layout == best->layout);
          }
        }
      }
    }
  }
}

// A question to `best`, on machines of 8 of these GPUs, whose memory the planner's formulas fill.
struct OfPlanner {
  const char* model;
  const char* gpu;
  int world;
  int sequence_length = 4096;
  int global_batch_size = 512;
  int zero_stage = 1;
  Recompute recompute = Recompute::kSelective;
};

TEST_CASE("best is as fast on paper as the layout that convene plan ranks first") {
  const OfPlanner c = GENERATE(values<OfPlanner>({
      {"llama-3-8b", "h100", 8},
      {"llama-3-8b", "h100", 64, 4096, 512, 3},
      {"llama-3-70b", "h100", 256, 4096, 1024},
      {"llama-3-70b", "h200", 64, 8192, 256, 3, Recompute::kFull},
      {"qwen3-8b", "l40s", 16, 4096, 256, 1, Recompute::kFull},
      {"llama-tiny", "cpu", 8, 1024, 64},
  }));
  const PlanJob job = {.model = *NamedModel(c.model),
                       .sequence_length = c.sequence_length,
                       .global_batch_size = c.global_batch_size};
  Cluster cluster = UsualCluster(c.gpu, 8);
  cluster.gpus = c.world;
  const Efficiency efficiency = EfficiencyOf(cluster.gpu);
  const auto plans = Search(job, cluster,
                            {.ep = 1,
                             .zero_stage = c.zero_stage,
                             .micro_batch_size = 1,
                             .virtual_stages = 1,
                             .recompute = c.recompute},
                            1, efficiency);
  REQUIRE_OK(plans);
  REQUIRE(!plans->ranked.empty());
  const Estimate& first = plans->ranked.front();
  TrainOptions options =
      Options({absl::StrCat("--model=", c.model), "--elastic-layout=best", "--precision=bf16",
               "--micro-batch-size=1", absl::StrCat("--zero-stage=", c.zero_stage),
               absl::StrCat("--sequence-length=", c.sequence_length),
               absl::StrCat("--global-batch-size=", c.global_batch_size),
               absl::StrCat("--dp-replicate-size=", first.strategy.layout.dp_replicate)});
  options.recompute = c.recompute;
  ModelCounts counts(job.model);
  const auto strategy_of = [&](const Layout& layout) {
    Strategy strategy = first.strategy;
    strategy.layout = layout;
    return strategy;
  };
  const auto planned = [&](const Layout& layout) {
    return RankMemory{.device_bytes = static_cast<int64_t>(
                          LargestMemory(job, strategy_of(layout), counts).Total())};
  };
  const JobHardware hardware = {
      .has = {.device_bytes = static_cast<int64_t>(cluster.gpu.memory_bytes)},
      .planned = planned,
      .cluster = cluster};
  const auto best = DecideLayout(options, c.world, /*job_has_begun=*/true, &hardware);
  REQUIRE_OK(best);
  cluster.gpus = best->layout.world_size();
  const Estimate estimate = EstimateOf(job, cluster, strategy_of(best->layout), counts, efficiency);
  INFO(c.model << " on " << c.gpu << ": planned " << first.strategy.layout.ToString() << ", best "
               << best->why);
  CHECK(Score(estimate) < 1.001 * Score(first));
}

TEST_CASE("best goes by the hardware") {
  const TrainOptions options =
      Options({"--model=llama-3-70b", "--elastic-layout=best", "--sequence-length=4096",
               "--global-batch-size=64", "--precision=bf16"});
  const auto planned = [](const Layout& layout) {
    return RankMemory{.device_bytes = (int64_t{1200} << 30) / (layout.tp * layout.pp)};
  };
  const auto tp_in_nodes_of = [&](int node) {
    const JobHardware hardware = {.has = {.device_bytes = int64_t{100} << 30},
                                  .planned = planned,
                                  .cluster = UsualCluster("h100", node)};
    const auto best = DecideLayout(options, 64, /*job_has_begun=*/true, &hardware);
    REQUIRE_OK(best);
    CHECK_THAT(best->why, Catch::Contains("the least step time that the planner has on h100"));
    return best->layout.tp;
  };
  // A tensor-parallel group goes to a node.
  CHECK(tp_in_nodes_of(8) > tp_in_nodes_of(1));
}

TEST_CASE("best counts 8-bit products as bf16 ones on hardware that has none") {
  const auto layout_of = [](const std::string& precision) {
    const auto best = DecideLayout(Options({"--elastic-layout=best", "--global-batch-size=1",
                                            "--tp-size=2", "--precision=" + precision}),
                                   4, /*job_has_begun=*/false);
    REQUIRE_OK(best);
    return best->layout;
  };
  CHECK(layout_of("bf16").world_size() > 1);
  CHECK(layout_of("fp8") == layout_of("bf16"));
}

TEST_CASE("a micro batch beyond any int is all of a rank's samples, for best and for advice") {
  const auto layout_of = [](const std::string& size) {
    const auto best =
        DecideLayout(Options({"--elastic-layout=best", "--micro-batch-size=" + size}), 4, false);
    REQUIRE_OK(best);
    return best->layout;
  };
  const std::string size = GENERATE("2147483648", "4294967296", "4294967298");
  CHECK(layout_of(size) == layout_of("32"));
  CHECK_STATUS(AtStart({"--dp-size=2", "--micro-batch-size=" + size}, 1), kInvalid,
               "dp_size 2 = 2 workers, but this job has 1; start 2 workers");
}

TEST_CASE("best refuses chunks beyond any int in words") {
  CHECK_STATUS(AtStart({"--elastic-layout=best", "--pp-size=2", "--pp-schedule=interleaved",
                        "--pp-virtual-stages=1073741824"},
                       8),
               kInvalid, "pp_virtual_stages 1073741824");
}

TEST_CASE("the line says the layout, the workers, what was asked for, and the rule") {
  CHECK(LineOf(Options({"--tp-size=2", "--pp-size=2", "--dp-size=4"}), 13) ==
        "layout dp3 x tp2 x pp2: 12 of 13 workers train; asked dp4; kept tp and pp "
        "(--elastic-layout keep)");
  CHECK(LineOf(Options({"--tp-size=2"}), 5) ==
        "layout dp2 x tp2 x pp1: 4 of 5 workers train; kept tp and pp (--elastic-layout keep)");
  CHECK(LineOf(Options({"--tp-size=2"}), 4) == "");
  CHECK(
      LineOf(Options({"--tp-size=2", "--pp-size=2", "--elastic-layout=best"}), 3) ==
      "layout dp3 x tp1 x pp1: 3 of 3 workers train; asked tp2 x pp2; the least step time that the "
      "planner has on a usual CPU, of all legal layouts, whatever memory they take (a run asks its "
      "own hardware), then nearest in tp and pp (--elastic-layout best)");
}

TEST_CASE("copies become fewer before their shards do") {
  const TrainOptions whole = Options({"--dp-shard-size=2", "--dp-replicate-size=3"});
  const auto kept = [](const TrainOptions& options, int world) {
    const auto decision = DecideLayout(options, world, /*job_has_begun=*/true);
    REQUIRE_OK(decision);
    return decision->layout;
  };
  CHECK(kept(whole, 6) == Layout{.dp = 6, .dp_replicate = 3});
  CHECK(kept(whole, 7) == Layout{.dp = 6, .dp_replicate = 3});
  CHECK(kept(whole, 5) == Layout{.dp = 4, .dp_replicate = 2});
  CHECK(kept(whole, 3) == Layout{.dp = 2, .dp_replicate = 1});
  CHECK(kept(whole, 1) == Layout{.dp = 1, .dp_replicate = 1});
  CHECK(LineOf(whole, 5) ==
        "layout dp4 (2 copies of 2 shards) x tp1 x pp1: 4 of 5 workers train; asked dp6 (3 copies "
        "of 2 shards); kept tp and pp (--elastic-layout keep)");
  // The same with dp_size and one of the two; and with one alone, where the other follows.
  CHECK(kept(Options({"--dp-size=6", "--dp-replicate-size=3"}), 5) ==
        Layout{.dp = 4, .dp_replicate = 2});
  CHECK(kept(Options({"--dp-size=8", "--dp-shard-size=4"}), 7) == Layout{.dp = 4});
  CHECK(kept(Options({"--dp-shard-size=2"}), 7) == Layout{.dp = 6, .dp_replicate = 3});
  CHECK(kept(Options({"--dp-shard-size=4"}), 3) == Layout{.dp = 3});
  CHECK(LineOf(Options({"--dp-shard-size=4"}), 3) ==
        "layout dp3 x tp1 x pp1: 3 of 3 workers train; asked dp_shard_size 4; kept tp and pp "
        "(--elastic-layout keep)");
  CHECK(kept(Options({"--dp-replicate-size=3"}), 7) == Layout{.dp = 6, .dp_replicate = 3});
  CHECK(kept(Options({"--dp-replicate-size=3"}), 2) == Layout{.dp = 2, .dp_replicate = 2});
  CHECK(kept(Options({"--zero-stage=0"}), 7) == Layout{.dp = 7, .dp_replicate = 7});
  // best fills the world with copies of the shards that were asked for.
  TrainOptions best = Options({"--dp-shard-size=2", "--dp-replicate-size=2"});
  best.elastic_layout = ElasticLayout::kBest;
  CHECK(kept(best, 6) == Layout{.dp = 6, .dp_replicate = 3});
}

TEST_CASE("context parallelism is kept, and named where it is more than one") {
  const TrainOptions options = Options({"--tp-size=2", "--cp-size=2", "--dp-size=2"});
  CHECK(LineOf(options, 8).empty());
  CHECK(LineOf(options, 7) ==
        "layout dp1 x cp2 x tp2 x pp1: 4 of 7 workers train; asked dp2; kept tp, pp and cp "
        "(--elastic-layout keep)");
  CHECK_STATUS(AtStart({"--tp-size=2", "--cp-size=2"}, 3), kInvalid,
               "tp_size 2 x pp_size 1 x cp_size 2 = 4 workers hold one replica");
}

TEST_CASE("a schedule in a file keeps its stages and micro batches") {
  TrainOptions options = Options({"--pp-size=2", "--micro-batch-size=4", "--global-batch-size=32"});
  options.pp_schedule = "own.csv";
  options.pp_schedule_csv = CsvOf(2, 4);
  const auto decide = [&](ElasticLayout policy, int world) {
    options.elastic_layout = policy;
    return DecideLayout(options, world, /*job_has_begun=*/true);
  };
  REQUIRE_OK(decide(ElasticLayout::kKeep, 4));
  CHECK(decide(ElasticLayout::kKeep, 4)->layout == Layout{.pp = 2, .dp = 2});
  // Of 3 replicas 2 have four micro batches each; one alone has eight, which the file does not.
  CHECK(decide(ElasticLayout::kKeep, 6)->layout == Layout{.pp = 2, .dp = 2});
  CHECK_STATUS(decide(ElasticLayout::kKeep, 3), kInvalid, "choose micro_batch_size 8");
  CHECK(decide(ElasticLayout::kBest, 6)->layout == Layout{.pp = 2, .dp = 2});
  CHECK(decide(ElasticLayout::kBest, 9)->layout == Layout{.pp = 2, .dp = 2, .cp = 2});
  CHECK_STATUS(decide(ElasticLayout::kBest, 3), kInvalid, "is for 2 ranks and 4 micro batches");
}

TEST_CASE("best leaves out what has no room, and says the memory") {
  const TrainOptions options = Options({"--tp-size=2", "--pp-size=2", "--elastic-layout=best"});
  // 24 GiB over the ranks of a replica.
  const auto planned = [](const Layout& layout) {
    const int64_t bytes = (int64_t{24} << 30) / (layout.tp * layout.pp);
    return RankMemory{.device_bytes = bytes, .host_bytes = bytes / 2};
  };
  const auto decide = [&](int world, int64_t gib, int64_t host_gib = 100) {
    const JobHardware hardware = {.has = {gib << 30, host_gib << 30}, .planned = planned};
    return DecideLayout(options, world, /*job_has_begun=*/true, &hardware);
  };
  CHECK(decide(5, 40)->layout == Layout{.dp = 5});
  // A tenth is left for the rest of the process: 10 GiB hold no half of 24.
  const auto cut_of = [&](const absl::StatusOr<LayoutDecision>& decision) {
    REQUIRE_OK(decision);
    return decision->layout.tp * decision->layout.pp;
  };
  CHECK(cut_of(decide(5, 14)) > 1);
  CHECK(cut_of(decide(4, 10)) == 4);
  CHECK(
      decide(3, 10)->why ==
      "layout dp1 x tp1 x pp3: 3 of 3 workers train; asked tp2 x pp2; the least step time that the "
      "planner has on cpu, of all legal layouts with room for their memory (8.0 GiB of 10.0 GiB "
      "and on the host 4.0 GiB of "
      "100 GiB a rank), then nearest in tp and pp (--elastic-layout best)");
  CHECK(cut_of(decide(5, 40, /*host_gib=*/4)) > 3);
  CHECK_STATUS(decide(3, 8), absl::StatusCode::kResourceExhausted,
               "no layout of 3 workers fits in memory: the one that takes the least is dp1 x tp1 x "
               "pp3 with 8.0 GiB of 8.0 GiB and on the host 4.0 GiB of 100 GiB a rank, of which "
               "90 % can be planned with");
}

TEST_CASE("keep takes the best layout where too few workers are left for a replica") {
  CHECK(LineOf(Options({"--tp-size=2", "--pp-size=2"}), 3) ==
        "layout dp3 x tp1 x pp1: 3 of 3 workers train; asked tp2 x pp2; tp and pp cannot be kept: "
        "tp_size 2 x pp_size 2 = 4 workers hold one replica of the model, and this job has 3; so "
        "the least step time that the planner has on a usual CPU, of all legal layouts, whatever "
        "memory they take (a run asks its own hardware), then nearest in tp and pp "
        "(--elastic-layout keep)");
  CHECK_THAT(LineOf(Options({"--tp-size=2", "--cp-size=2", "--dp-size=2"}), 3),
             Catch::Contains("tp, pp and cp cannot be kept: tp_size 2 x pp_size 1 x cp_size 2 = 4 "
                             "workers hold one replica"));
}

TEST_CASE("keep takes the best layout where the kept one is not legal") {
  // 2^30 tokens a step are too many for one data-parallel rank.
  const TrainOptions options = Options(
      {"--tp-size=2", "--dp-size=2", "--global-batch-size=65536", "--sequence-length=16384"});
  CHECK(LineOf(options, 4).empty());
  const std::string line = LineOf(options, 2);
  CHECK_THAT(line, Catch::StartsWith("layout dp2 x tp1 x pp1: 2 of 2 workers train; asked tp2; tp "
                                     "and pp cannot be kept: global_batch_size 65536 x "
                                     "sequence_length 16384 over dp 1 must be below 2^30 tokens"));
  CHECK_THAT(line, Catch::Contains("; so the least step time that the planner has on a usual CPU"));
}

// 24 GiB over all ranks, as ZeRO-3 shards them.
class Sharded {
 public:
  absl::StatusOr<LayoutDecision> Decide(const TrainOptions& options, int world, double gib,
                                        bool job_has_begun = true) {
    const auto planned = [this](const Layout& layout) {
      ++plans_;
      return RankMemory{.device_bytes = (int64_t{24} << 30) / layout.world_size()};
    };
    const auto bytes = static_cast<int64_t>(gib * (1 << 30));
    const JobHardware hardware = {.has = {.device_bytes = bytes}, .planned = planned};
    return DecideLayout(options, world, job_has_begun, &hardware);
  }
  std::string LineOf(const TrainOptions& options, int world, double gib) {
    const auto decision = Decide(options, world, gib);
    REQUIRE_OK(decision);
    return decision->why;
  }
  int plans() const { return plans_; }

 private:
  int plans_ = 0;
};

TEST_CASE("keep takes the best layout where fewer data-parallel ranks have no room") {
  Sharded model;
  const TrainOptions options = Options({"--pp-size=2", "--dp-size=3"});
  // Of 5 workers 4 would train, with 6 GiB each.
  CHECK(model.LineOf(options, 5, 7) ==
        "layout dp2 x tp1 x pp2: 4 of 5 workers train; asked dp3; kept tp and pp "
        "(--elastic-layout keep)");
  CHECK(model.plans() == 1);
  CHECK(model.LineOf(options, 5, 6.5) ==
        "layout dp5 x tp1 x pp1: 5 of 5 workers train; asked dp3 x pp2; tp and pp cannot be kept: "
        "dp2 x tp1 x pp2 takes 6.0 GiB of 6.5 GiB a rank, of which 90 % can be planned with; so "
        "the least step time that the planner has on cpu, of all legal layouts with room for their "
        "memory (4.8 GiB of 6.5 GiB a "
        "rank), then nearest in tp and pp (--elastic-layout keep)");
}

TEST_CASE("a layout that may have trained is kept unless it takes more than there is") {
  Sharded model;
  const TrainOptions unnamed = Options({"--pp-size=2"});
  CHECK(model.LineOf(unnamed, 5, 6) ==
        "layout dp2 x tp1 x pp2: 4 of 5 workers train; kept tp and pp (--elastic-layout keep)");
  CHECK(model.LineOf(unnamed, 6, 4).empty());
  CHECK_THAT(model.LineOf(unnamed, 5, 5.9),
             Catch::StartsWith("layout dp5 x tp1 x pp1: 5 of 5 workers train; asked pp2; tp and pp "
                               "cannot be kept: dp2 x tp1 x pp2 takes 6.0 GiB of 5.9 GiB a rank; "
                               "so "));
  // Shards that were named, and are fewer.
  CHECK_THAT(model.LineOf(Options({"--pp-size=2", "--dp-shard-size=4"}), 5, 6.5),
             Catch::Contains("asked dp_shard_size 4 x pp2; tp and pp cannot be kept: "));
  // The layout that was asked for has trained: nobody plans it.
  const int plans = model.plans();
  CHECK(model.LineOf(Options({"--pp-size=2", "--dp-size=3"}), 6, 1).empty());
  CHECK(model.plans() == plans);
}

TEST_CASE("where nothing fits in memory, keep tries the kept layout, and ends without one") {
  Sharded model;
  const std::string none_fits =
      "no layout of 4 workers fits in memory: the one that takes the least is dp4 x tp1 x pp1 with "
      "6.0 GiB of 2.0 GiB a rank, of which 90 % can be planned with; ";
  CHECK_THAT(model.LineOf(Options({"--pp-size=2", "--dp-size=3"}), 4, 2),
             Catch::StartsWith("layout dp2 x tp1 x pp2: 4 of 4 workers train; asked dp3; kept tp "
                               "and pp (--elastic-layout keep), although " +
                               none_fits));
  CHECK_THAT(model.LineOf(Options({"--pp-size=2"}), 4, 2),
             Catch::StartsWith("layout dp2 x tp1 x pp2: 4 of 4 workers train; kept tp and pp "
                               "(--elastic-layout keep), although " +
                               none_fits));
  CHECK_STATUS(
      model.Decide(Options({"--tp-size=2", "--pp-size=2"}), 3, 8),
      absl::StatusCode::kResourceExhausted,
      "tp and pp cannot be kept: tp_size 2 x pp_size 2 = 4 workers hold one replica of the "
      "model, and this job has 3; no layout of 3 workers fits in memory: ");
}

TEST_CASE("before the job has begun, a layout that was asked for is not planned") {
  Sharded model;
  const auto decision = model.Decide(Options({"--pp-size=2"}), 4, 1, /*job_has_begun=*/false);
  REQUIRE_OK(decision);
  CHECK(decision->layout == Layout{.pp = 2, .dp = 2});
  CHECK(decision->why.empty());
  CHECK(model.plans() == 0);
}

TEST_CASE("best has no data-parallel rank without a sample") {
  const auto decision = DecideLayout(
      Options({"--global-batch-size=3", "--elastic-layout=best", "--pp-size=2"}), 10, true);
  REQUIRE_OK(decision);
  CHECK(decision->layout.dp <= 3);
}

TEST_CASE("too few workers, or others than were asked for, are refused with what would do") {
  CHECK_STATUS(AtStart({"--tp-size=2", "--pp-size=2"}, 3), kInvalid,
               "tp_size 2 x pp_size 2 = 4 workers hold one replica of the model, and this job has "
               "3; start 4 workers (`convene run`: --nnodes x --nproc-per-node), or tp_size can be "
               "1, or pp_size can be 1, or elastic_layout can be best");
  CHECK_STATUS(AtStart({"--tp-size=2"}, 1), kInvalid,
               "and this job has 1; start 2 workers: `convene run --standalone --nproc-per-node 2 "
               "convene-train ...` on one machine, or tp_size can be 1");
  CHECK_STATUS(AtStart({"--tp-size=1048576", "--pp-size=1048576"}, 8), kInvalid,
               "= 1099511627776 workers hold one replica of the model, and this job has 8; "
               "elastic_layout can be best");
  CHECK_STATUS(AtStart({"--tp-size=2", "--dp-size=4"}, 6), kInvalid,
               "tp_size 2 x pp_size 1 x dp_size 4 = 8 workers, but this job has 6; start 8 workers "
               "(`convene run`: --nnodes x --nproc-per-node), or dp_size can be 3, or ");
  CHECK_STATUS(AtStart({"--tp-size=2", "--dp-size=4"}, 7), kInvalid, "dp_size can be left out");
  CHECK_STATUS(AtStart({"--dp-shard-size=4"}, 3), kInvalid,
               "dp_shard_size 4 = 4 data-parallel ranks, and this job has room for 3; "
               "start 4 workers (`convene run`: --nnodes x --nproc-per-node), or dp_shard_size can "
               "be 3 or 2 or 1");
  CHECK_STATUS(
      AtStart({"--dp-size=6", "--dp-shard-size=4"}, 6), kInvalid,
      "dp_shard_size 4 does not fit dp_size 6; dp_size can be left out, or dp_shard_size can be "
      "3 or 2 or 6");
  CHECK_STATUS(
      AtStart({"--dp-size=8", "--dp-shard-size=2", "--dp-replicate-size=2"}, 8), kInvalid,
      "dp_shard_size 2 x dp_replicate_size 2 does not fit dp_size 8; dp_size can be left out, "
      "or dp_shard_size can be 4, or dp_replicate_size can be 4");
  CHECK_STATUS(AtStart({"--dp-size=6", "--dp-shard-size=4", "--elastic-layout=best"}, 6), kInvalid,
               "dp_shard_size 4 does not fit dp_size 6; dp_size can be left out");
}

TEST_CASE("the workers of a plan are those that were asked for") {
  CHECK(AskedWorkers(Options({})) == 1);
  CHECK(AskedWorkers(Options({"--tp-size=2", "--pp-size=3", "--dp-shard-size=4"})) == 24);
  CHECK(AskedWorkers(Options({"--tp-size=1048576", "--pp-size=1048576", "--dp-size=2"})) ==
        Approx(2199023255552.0));
}

}  // namespace
}  // namespace convene::worker
