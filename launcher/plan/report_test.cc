// The answers of `convene plan`.
#include "launcher/plan/report.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "catch2/catch.hpp"
#include "tools/base/testing/environment_table.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/planner/explain.h"

namespace convene::launcher {
namespace {

absl::StatusOr<PlanFlags> Read(const std::vector<std::string>& arguments) {
  PlanFlags flags;
  FlagReader reader("convene plan", "");
  AddFlags(&reader, &flags);
  const auto read = reader.Read(arguments, testing::LookupIn({}));
  if (!read.ok()) return read.status();
  return flags;
}

absl::StatusOr<worker::PlanJob> Job(const PlanFlags& flags) {
  return JobOf(flags, *worker::NamedModel(flags.model));
}

// An answer, with all that it borrows.
struct Asked {
  explicit Asked(const std::vector<std::string>& arguments)
      : flags(*Read(arguments)),
        job(*Job(flags)),
        cluster(*ClusterOf(flags, std::nullopt)),
        plans(*worker::Search(job, cluster, flags.wishes, flags.layouts)) {}

  PlanAnswer answer() const { return {flags, job, cluster, plans}; }

  PlanFlags flags;
  worker::PlanJob job;
  worker::Cluster cluster;
  worker::Plans plans;
};

TEST_CASE("counts of tokens") {
  CHECK(*ParseCount("2T") == 2e12);
  CHECK(*ParseCount("300b") == 300e9);
  CHECK(*ParseCount("1.5e12") == 1.5e12);
  CHECK(*ParseCount("40M") == 40e6);
  for (const char* const text : {"", "T", "-1", "0", "two", "1e400", "1e300", "1e306T"}) {
    INFO(text);
    CHECK_FALSE(ParseCount(text).ok());
  }
}

TEST_CASE("flags describe a job and a cluster") {
  const auto flags = Read({"--model", "llama-3-70b", "--gpus", "1024", "--tokens", "2T",
                           "--precision", "fp8", "--tp-size", "8", "--recompute", "full"});
  REQUIRE_OK(flags);
  CHECK(*flags->tokens == 2e12);
  CHECK(*flags->wishes.tp == 8);
  CHECK(*flags->wishes.recompute == worker::Recompute::kFull);
  const auto job = Job(*flags);
  REQUIRE_OK(job);
  CHECK(job->float8);
  CHECK(job->sequence_length == 4096);
  CHECK(job->global_batch_size == 1024);
  CHECK(Job(*Read({"--model", "gpt2-124m"}))->sequence_length == 1024);
  CHECK(Job(*Read({"--precision", "fp32"}))->dtype == worker::DType::kFloat32);
  CHECK(Job(*Read({"--optimizer", "muon"}))->optimizer_states == 1);
  CHECK(Job(*Read({"--optimizer", "muon"}))->whole_matrices);
  CHECK_FALSE(Job(*Read({"--optimizer", "sgd"}))->whole_matrices);
  // Machines of another size; a rack's links reach beyond its machines.
  CHECK(ClusterOf(*Read({"--gpus", "16", "--nodes-of", "4"}), {})->gpu.domain == 4);
  CHECK(ClusterOf(*Read({"--gpus", "72", "--gpu", "gb200"}), {})->gpu.domain == 72);
  CHECK(ClusterOf(*Read({"--gpus", "64", "--gpu", "gb200"}), {})->gpu.domain == 64);
  CHECK(ClusterOf(*Read({"--gpus", "2"}), {})->gpu.node == 2);
  // The file says the rest.
  const worker::Cluster file = worker::UsualCluster("b200", 8);
  CHECK(ClusterOf(*Read({"--cluster", "file"}), file)->network.name == "ndr400");
  const auto mixed = ClusterOf(*Read({"--cluster", "file", "--network", "eth-25"}), file);
  REQUIRE_OK(mixed);
  CHECK(mixed->network.name == "eth-25");
  CHECK(mixed->gpu.name == "b200");
}

TEST_CASE("bad input is one paragraph that says what to do") {
  const auto says = [](const absl::Status& status, const std::string& words) {
    CHECK_FALSE(status.ok());
    CHECK_THAT(std::string(status.message()), Catch::Contains(words));
  };
  says(Read({"--gpu", "h10"}).status(), "h100");
  says(Read({"--tokens", "many"}).status(), "2T");
  says(Read({"--price-per-gpu-hour", "inf"}).status(), "from 0 to");
  says(Read({"--json", "--emit", "sbatch"}).status(), "give one of them");
  says(Read({"--cluster", "file", "--gpu", "a100"}).status(), "give one of them");
  says(Job(*Read({"--model", "mixtral-8x7b", "--precision", "fp8"})).status(), "bf16");
  says(Job(*Read({"--model", "deepseek-v3", "--precision", "fp8"})).status(), "bf16");
  says(Job(*Read({"--model", "gpt2-124m", "--sequence-length", "2048"})).status(), "at most 1024");
  says(ClusterOf(*Read({"--gpus", "12"}), {}).status(), "--nodes-of");
}

TEST_CASE("figures follow from the step") {
  const Asked asked({"--model", "llama-3-8b", "--gpus", "8", "--tokens", "1T", "--sequence-length",
                     "8192", "--global-batch-size", "128", "--price-per-gpu-hour", "2"});
  const worker::Estimate& best = asked.plans.ranked.front();
  const PlanFigures figures = FiguresOf(asked.answer(), best);
  CHECK(figures.tokens_per_second == Approx(128 * 8192 / best.step_seconds()));
  CHECK(figures.tokens_per_gpu == Approx(figures.tokens_per_second / 8));
  // formulas.md: 57.91 and 51.47 GFLOP a token of 8B at 8,192 tokens.
  CHECK(figures.mfu_full * 989e12 / figures.tokens_per_gpu == Approx(57.91e9).epsilon(1e-3));
  CHECK(figures.mfu_causal * 989e12 / figures.tokens_per_gpu == Approx(51.47e9).epsilon(1e-3));
  const double hours = 1e12 / figures.tokens_per_second / 3600;
  CHECK(figures.days == Approx(hours / 24));
  CHECK(figures.mwh == Approx(hours * 8 * 1275 / 1e6));
  CHECK(figures.price == Approx(hours * 8 * 2));
}

TEST_CASE("HFU is MFU where passes alone are computed again, and a forward pass more after full") {
  const auto figures_of = [](const std::string& recompute) {
    const Asked asked({"--model", "llama-3-8b", "--gpus", "8", "--recompute", recompute});
    return FiguresOf(asked.answer(), asked.plans.ranked.front());
  };
  const PlanFigures selective = figures_of("selective");
  CHECK(selective.hfu == selective.mfu_full);
  const PlanFigures full = figures_of("full");
  CHECK(full.hfu > 1.2 * full.mfu_full);
  CHECK(full.hfu < 4.0 / 3 * full.mfu_full);
}

TEST_CASE("--recompute takes what a plan prints, and says what it can be") {
  for (const bool norms : {false, true}) {
    for (const bool attention : {false, true}) {
      for (const bool mlp : {false, true}) {
        const worker::Recompute recompute = {
            .norms = norms, .swiglu = mlp, .attention = attention, .mlp = mlp};
        const std::string text = worker::RecomputeText(recompute);
        INFO(text);
        const Asked asked({"--model", "llama-3-8b", "--gpus", "8", "--recompute", text});
        REQUIRE(asked.plans.ranked.size() > 0);
        CHECK(asked.plans.ranked.front().strategy.recompute == recompute);
        CHECK_THAT(TrainYaml(asked.answer()), Catch::Contains("recompute: " + text + "\n"));
      }
    }
  }
  CHECK_STATUS(Read({"--model", "llama-3-8b", "--gpus", "8", "--recompute", "norms,all"}),
               absl::StatusCode::kInvalidArgument, "some of norms, swiglu, attention and mlp");
}

TEST_CASE("the text names all that was asked") {
  const Asked asked(
      {"--model", "llama-3-70b", "--gpus", "64", "--tokens", "1T", "--explain", "--layouts", "2"});
  const std::string text = PlanText(asked.answer());
  for (const char* const words :
       {"70.6B parameters", "64 x h100", "1. ", "2. ", "MFU", "Megatron", "HFU", "days", "MWh",
        "pipeline bubble", "optimizer", "activations", "traffic of dp", "limited by", "good",
        "the choice"}) {
    INFO(words);
    CHECK_THAT(text, Catch::Contains(words));
  }
  const Asked tight({"--model", "llama-3-70b", "--gpus", "8", "--gpu", "rtx-4090"});
  CHECK_THAT(PlanText(tight.answer()), Catch::Contains("No layout fits."));
}

TEST_CASE("the energy of a GPU without watts is not told") {
  Asked asked({"--model", "llama-3-8b", "--gpus", "64", "--tokens", "1T"});
  CHECK_THAT(PlanText(asked.answer()), Catch::Contains(" days, "));
  asked.cluster.gpu.watts = 0;
  CHECK_THAT(PlanText(asked.answer()), Catch::Contains(" days\n"));
  CHECK_THAT(PlanText(asked.answer()), !Catch::Contains("MWh"));
}

TEST_CASE("JSON has the same figures") {
  const Asked asked({"--model", "qwen3-30b-a3b", "--gpus", "16", "--layouts", "2"});
  const std::string json = PlanJson(asked.answer());
  const worker::Estimate& best = asked.plans.ranked.front();
  CHECK_THAT(json, Catch::Contains(absl::StrFormat("\"step_seconds\": %.9g", best.time.total)));
  CHECK_THAT(json, Catch::Contains(absl::StrFormat("\"total\": %.15g", best.memory.Total())));
  CHECK_THAT(json, Catch::Contains("\"ways_to_fit\": []"));
  CHECK(std::count(json.begin(), json.end(), '{') == std::count(json.begin(), json.end(), '}'));
}

TEST_CASE("the configuration trains as many tokens as were asked for") {
  const Asked asked({"--model", "llama-3-8b", "--tokens", "1T", "--global-batch-size", "256",
                     "--data", "my \"tokens\".bin"});
  const std::string text = TrainYaml(asked.answer());
  CHECK_THAT(text, Catch::Contains("\nsteps: 953674\n"));
  CHECK_THAT(text, Catch::Contains("\"my \\\"tokens\\\".bin\""));
}

TEST_CASE("the batch file asks Slurm for the machines") {
  const Asked asked({"--model", "llama-3-70b", "--gpus", "1024"});
  const std::string text = SbatchText(asked.answer());
  CHECK_THAT(text, Catch::StartsWith("#!/bin/bash\n"));
  CHECK_THAT(text, Catch::Contains("#SBATCH --nodes=128\n#SBATCH --gpus-per-node=8\n"));
  CHECK_THAT(text, Catch::Contains("convene-train --config train.yaml \\\n  --checkpoint-dir"));
  CHECK_THAT(text, !Catch::Contains("$MODEL") && !Catch::Contains("$DATA"));
  // As in tools/deploy/slurm/train.sbatch: it comes back, and an array's tasks have a folder each.
  CHECK_THAT(text, Catch::Contains("scontrol requeue \"$job\"") &&
                       Catch::Contains("${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}"));
}

TEST_CASE("the batch file of a plan for CPUs asks for no GPUs") {
  const Asked asked({"--model", "llama-3.2-1b", "--gpu", "cpu", "--gpus", "16"});
  const std::string text = SbatchText(asked.answer());
  CHECK_THAT(text, !Catch::Contains("--gpus-per-node") && !Catch::Contains("WORKERS:=gpu"));
  CHECK_THAT(text, Catch::Contains("\"${WORKERS:=") && Catch::Contains("#SBATCH --nodes="));
}

}  // namespace
}  // namespace convene::launcher
