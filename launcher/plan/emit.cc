#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "launcher/json_text.h"
#include "launcher/plan/report.h"
#include "launcher/plan/train_sbatch.h"
#include "tools/base/check.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/explain.h"
#include "worker_runtime/planner/train_yaml.h"

namespace convene::launcher {
namespace {

using worker::Estimate;
using worker::Strategy;

// Of usual machines. Without a number Slurm gives a task one CPU, and all workers share it.
constexpr int kCpusPerGpu = 12;

// Digits of a number: enough for a time or a rate, and for bytes to the last one.
constexpr int kDigits = 9;
constexpr int kByteDigits = 15;

std::string JsonNumbers(const std::vector<std::pair<const char*, double>>& numbers,
                        int digits = kDigits) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", JsonText(name), ": ",
                    absl::StrFormat("%.*g", digits, value));
  }
  return text;
}

std::string JsonTexts(const std::vector<std::string>& texts) {
  std::string text;
  for (const std::string& each : texts) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", JsonText(each));
  }
  return absl::StrCat("[", text, "]");
}

std::string LayoutJson(const Strategy& strategy) {
  const worker::Layout& layout = strategy.layout;
  return absl::StrCat("{\"tp\": ", layout.tp, ", \"pp\": ", layout.pp, ", \"cp\": ", layout.cp,
                      ", \"ep\": ", layout.ep, ", \"dp\": ", layout.dp,
                      ", \"dp_replicate\": ", layout.dp_replicate,
                      ", \"zero_stage\": ", strategy.zero_stage,
                      ", \"micro_batch_size\": ", strategy.micro_batch_size,
                      ", \"schedule\": ", JsonText(ScheduleName(strategy)),
                      ", \"virtual_stages\": ", strategy.virtual_stages,
                      ", \"recompute\": ", JsonText(RecomputeText(strategy.recompute)), "}");
}

std::string EstimateJson(const PlanAnswer& answer, const Estimate& estimate) {
  const PlanFigures figures = FiguresOf(answer, estimate);
  const worker::MemoryParts& memory = estimate.memory;
  const worker::StepTime& time = estimate.time;
  std::string axes;
  for (const worker::AxisTraffic& axis : time.axes) {
    absl::StrAppend(
        &axes, axes.empty() ? "" : ", ", "{\"axis\": ", JsonText(axis.axis),
        ", \"link\": ", JsonText(axis.link), ", ",
        JsonNumbers(
            {{"bytes", axis.bytes}, {"seconds", axis.seconds}, {"exposed_seconds", axis.exposed}}),
        "}");
  }
  return absl::StrCat(
      "{\"layout\": ", LayoutJson(estimate.strategy), ", ",
      JsonNumbers({{"step_seconds", time.total},
                   {"tokens_per_second", figures.tokens_per_second},
                   {"tokens_per_second_per_gpu", figures.tokens_per_gpu},
                   {"peak_flops", figures.peak},
                   {"mfu_full_attention", figures.mfu_full},
                   {"mfu_causal_attention", figures.mfu_causal},
                   {"hfu", figures.hfu},
                   {"days", figures.days},
                   {"mwh", figures.mwh},
                   {"price", figures.price}}),
      ", \"memory_bytes\": {",
      JsonNumbers({{"total", memory.Total()},
                   {"parameters", memory.parameters},
                   {"gradients", memory.gradients},
                   {"optimizer", memory.optimizer},
                   {"activations", memory.activations},
                   {"scratch", memory.scratch},
                   {"logits", memory.logits},
                   {"communication", memory.communication}},
                  kByteDigits),
      "}, \"nccl_bytes\": ", absl::StrFormat("%.0f", memory.nccl), ", \"seconds\": {",
      JsonNumbers({{"products", time.products},
                   {"attention", time.attention},
                   {"passes", time.passes},
                   {"recomputed", time.recomputed},
                   {"communication", time.communication},
                   {"bubble", time.bubble},
                   {"optimizer", time.optimizer},
                   {"stragglers", time.stragglers}}),
      "}, \"traffic\": [", axes,
      "], \"good\": ", JsonTexts(Strengths(answer.job, answer.cluster, estimate)),
      ", \"limits\": ", JsonTexts(Limits(answer.job, answer.cluster, estimate)), "}");
}

// A path's last part, without the characters at which a line of options would end or break.
std::string JobName(absl::string_view model) {
  while (absl::ConsumeSuffix(&model, "/")) {
  }
  std::string name(model.substr(model.rfind('/') + 1));
  const auto is_odd = [](char c) { return !absl::ascii_isalnum(c) && c != '.' && c != '-'; };
  std::replace_if(name.begin(), name.end(), is_odd, '_');
  return name.find_first_not_of('.') == std::string::npos ? "train" : name;
}

// REQUIRES: `text` has `from`, once.
void Replace(absl::string_view from, absl::string_view to, std::string* text) {
  CONVENE_CHECK(absl::StrReplaceAll({{from, to}}, text) == 1);
}

}  // namespace

std::string PlanJson(const PlanAnswer& answer) {
  const worker::PlanJob& job = answer.job;
  std::string layouts;
  for (const Estimate& estimate : answer.plans.ranked) {
    absl::StrAppend(&layouts, layouts.empty() ? "" : ",\n  ", EstimateJson(answer, estimate));
  }
  const bool fits = !answer.plans.ranked.empty();
  return absl::StrCat(
      "{\"model\": ", JsonText(answer.flags.model),
      ", \"parameters\": ", worker::ParameterCount(job.model),
      ", \"precision\": ", JsonText(worker::PrecisionName(job)),
      ", \"sequence_length\": ", job.sequence_length,
      ", \"global_batch_size\": ", job.global_batch_size,
      ", \"gpu\": ", JsonText(answer.cluster.gpu.name), ", \"gpus\": ", answer.cluster.gpus,
      ", \"network\": ", JsonText(answer.cluster.network.name),
      ", \"layouts_tried\": ", answer.plans.tried,
      ",\n \"explain\": ", JsonTexts(Explain(job, answer.cluster, answer.plans)),
      ",\n \"ways_to_fit\": ",
      JsonTexts(fits ? std::vector<std::string>() : WaysToFit(job, answer.cluster, answer.plans)),
      ",\n \"layouts\": [", layouts, "]}\n");
}

std::string TrainYaml(const PlanAnswer& answer) {
  const worker::PlanJob& job = answer.job;
  const auto a_step =
      static_cast<double>(job.global_batch_size) * static_cast<double>(job.sequence_length);
  worker::RunSettings settings = {
      .model = answer.flags.model, .optimizer = answer.flags.optimizer, .data = answer.flags.data};
  if (answer.flags.tokens.has_value()) {
    settings.steps = std::max<int64_t>(1, std::llround(*answer.flags.tokens / a_step));
  }
  return absl::StrCat("# Made by `convene plan` for ", answer.cluster.gpus, " x ",
                      answer.cluster.gpu.name, ".\n",
                      worker::TrainYaml(settings, job, answer.plans.ranked.front().strategy));
}

std::string SbatchText(const PlanAnswer& answer) {
  const worker::Cluster& cluster = answer.cluster;
  const int node = cluster.gpu.node;
  const std::string gpus = absl::StrCat("#SBATCH --gpus-per-node=", node, "\n");
  std::string text = kTrainSbatch;
  Replace(
      "# One training job on several nodes. Copy this file, change the lines marked CHANGE, then:",
      "# Made by `convene plan`: tools/deploy/slurm/train.sbatch with the plan's numbers. It reads "
      "train.yaml, the output of --emit\n# train.yaml. Look at the lines marked CHANGE, then:",
      &text);
  Replace("--job-name=train\n", absl::StrCat("--job-name=", JobName(answer.flags.model), "\n"),
          &text);
  Replace("--nodes=2\n", absl::StrCat("--nodes=", cluster.gpus / node, "\n"), &text);
  Replace("#SBATCH --gpus-per-node=8\n", cluster.gpu.is_cpu ? "" : gpus, &text);
  Replace("--cpus-per-task=96\n", absl::StrCat("--cpus-per-task=", kCpusPerGpu * node, "\n"),
          &text);
  if (cluster.gpu.is_cpu) Replace("${WORKERS:=gpu}", absl::StrCat("${WORKERS:=", node, "}"), &text);
  Replace(": \"${MODEL:=llama-3.2-1b}\" \"${DATA:=/shared/books/*.txt}\"\n", "", &text);
  Replace("--model \"$MODEL\" --data \"$DATA\" --steps 10000", "--config train.yaml", &text);
  return text;
}

}  // namespace convene::launcher
