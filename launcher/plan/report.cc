#include "launcher/plan/report.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tools/base/text.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/counts.h"
#include "worker_runtime/planner/explain.h"
#include "worker_runtime/planner/train_yaml.h"
#include "worker_runtime/planner/utilization.h"
#include "worker_runtime/report/number_text.h"

namespace convene::launcher {
namespace {

using worker::Estimate;
using worker::HumanCount;
using worker::MemoryParts;
using worker::StepTime;

constexpr double kHoursADay = 24;

std::string Row(const std::string& name, const std::string& text) {
  return absl::StrFormat("  %-14s %s\n", name, text);
}

// One of a list: a sentence a line.
std::string Item(const std::string& sentences) {
  return absl::StrCat("- ", absl::StrReplaceAll(sentences, {{". ", ".\n  "}}), "\n");
}

std::string MemoryText(const MemoryParts& memory, double has) {
  std::vector<std::string> parts;
  for (const auto& [bytes, name] :
       {std::pair(memory.parameters, "parameters"), std::pair(memory.gradients, "gradients"),
        std::pair(memory.optimizer, "optimizer"), std::pair(memory.activations, "activations"),
        std::pair(memory.scratch, "scratch"), std::pair(memory.logits, "logits"),
        std::pair(memory.communication, "communication")}) {
    if (bytes >= 1e6) parts.push_back(absl::StrCat(name, " ", HumanBytes(bytes)));
  }
  std::string text = absl::StrCat(HumanBytes(memory.Total()), " of ", HumanBytes(has), ":");
  if (memory.nccl > 0) {
    parts.push_back(
        absl::StrCat("besides, NCCL's own buffers (an estimate) ", HumanBytes(memory.nccl)));
  }
  for (const std::string& part : parts) absl::StrAppend(&text, "\n", std::string(17, ' '), part);
  return text;
}

std::string TimeText(const StepTime& time) {
  std::string text = absl::StrFormat("%.3g s a step:", time.total);
  for (const auto& [seconds, name] :
       {std::pair(time.products, "products"), std::pair(time.attention, "attention"),
        std::pair(time.passes, "norms, activations, launches"),
        std::pair(time.recomputed, "computed again"),
        std::pair(time.communication, "communication that nothing hides"),
        std::pair(time.bubble, "pipeline bubble"), std::pair(time.optimizer, "optimizer"),
        std::pair(time.stragglers, "slowest rank")}) {
    if (seconds < 0.0005 * time.total) continue;
    absl::StrAppend(&text, absl::StrFormat("\n%s%5.1f %%  %s", std::string(17, ' '),
                                           100 * seconds / time.total, name));
  }
  return text;
}

std::string TrainingText(const PlanAnswer& answer, const PlanFigures& figures) {
  if (!answer.flags.tokens.has_value()) return "";
  std::string text =
      absl::StrFormat("%s tokens in %.1f days", HumanCount(*answer.flags.tokens), figures.days);
  if (figures.mwh > 0) absl::StrAppend(&text, absl::StrFormat(", %.0f MWh", figures.mwh));
  if (answer.flags.price.has_value()) {
    absl::StrAppend(&text, ", price ", HumanCount(figures.price));
  }
  return Row("training", text);
}

std::string LayoutText(const PlanAnswer& answer, const Estimate& estimate, size_t number) {
  const PlanFigures figures = FiguresOf(answer, estimate);
  std::string text =
      absl::StrCat("\n", number, ". ", worker::StrategyText(estimate.strategy), "\n");
  absl::StrAppend(
      &text,
      Row("speed", absl::StrFormat("%s tokens/s, %s a GPU", HumanCount(figures.tokens_per_second),
                                   HumanCount(figures.tokens_per_gpu))),
      Row("", absl::StrFormat("MFU %.1f %% of %.3g TFLOP/s, with all scores of attention (PaLM)",
                              100 * figures.mfu_full, figures.peak / 1e12)),
      Row("", absl::StrFormat("MFU %.1f %%, with the causal half of them (Megatron)",
                              100 * figures.mfu_causal)),
      Row("", absl::StrFormat("HFU %.1f %%, with what is computed again", 100 * figures.hfu)),
      TrainingText(answer, figures), Row("time", TimeText(estimate.time)),
      Row("memory a GPU", MemoryText(estimate.memory, answer.cluster.gpu.memory_bytes)));
  for (const worker::AxisTraffic& axis : estimate.time.axes) {
    absl::StrAppend(
        &text, Row(absl::StrCat("traffic of ", axis.axis),
                   absl::StrFormat("%s a step and GPU on %s, %.3f s, %.3f s of them "
                                   "exposed",
                                   HumanBytes(axis.bytes), axis.link, axis.seconds, axis.exposed)));
  }
  for (const std::string& good : Strengths(answer.job, answer.cluster, estimate)) {
    absl::StrAppend(&text, Row("good", good));
  }
  for (const std::string& limit : Limits(answer.job, answer.cluster, estimate)) {
    absl::StrAppend(&text, Row("limited by", limit));
  }
  return text;
}

}  // namespace

PlanFigures FiguresOf(const PlanAnswer& answer, const Estimate& estimate) {
  const worker::PlanJob& job = answer.job;
  const worker::Gpu& gpu = answer.cluster.gpu;
  PlanFigures figures;
  figures.tokens_per_second = static_cast<double>(job.global_batch_size) *
                              static_cast<double>(job.sequence_length) / estimate.step_seconds();
  figures.tokens_per_gpu = figures.tokens_per_second / answer.cluster.gpus;
  worker::ModelCounts counts(job.model);
  const worker::TokenFlops flops = FlopsOf(job.model, job.sequence_length, counts);
  figures.peak = worker::PeakOf(gpu, job.dtype, job.float8);
  const worker::Utilization mfu =
      worker::UtilizationOf(flops, figures.tokens_per_gpu, figures.peak);
  figures.mfu_full = mfu.full_attention;
  figures.mfu_causal = mfu.causal_attention;
  const double again = RecomputedFlops(job.model, estimate.strategy.recompute, flops, counts);
  figures.hfu = figures.mfu_full + again * figures.tokens_per_gpu / figures.peak;
  if (answer.flags.tokens.has_value()) {
    const double hours = *answer.flags.tokens / figures.tokens_per_second / 3600;
    figures.days = hours / kHoursADay;
    figures.mwh = hours * gpu.watts * answer.cluster.gpus / 1e6;
    figures.price = hours * answer.cluster.gpus * answer.flags.price.value_or(0);
  }
  return figures;
}

std::string PlanText(const PlanAnswer& answer) {
  const worker::PlanJob& job = answer.job;
  const worker::Cluster& cluster = answer.cluster;
  std::string text = absl::StrFormat(
      "%s: %s parameters, %s, %d samples of %d tokens a step\n%d x %s in machines of %d, %s in a "
      "domain of %d, %s between\n%d layouts tried\n",
      answer.flags.model, HumanCount(static_cast<double>(worker::ParameterCount(job.model))),
      worker::PrecisionName(job), job.global_batch_size, job.sequence_length, cluster.gpus,
      cluster.gpu.name, cluster.gpu.node, cluster.gpu.link.name, cluster.gpu.domain,
      cluster.network.name, answer.plans.tried);
  if (answer.flags.explains) {
    absl::StrAppend(&text, "\n");
    for (const std::string& line : Explain(job, cluster, answer.plans)) {
      absl::StrAppend(&text, Item(line));
    }
  }
  if (answer.plans.ranked.empty()) {
    absl::StrAppend(&text, "\nNo layout fits.\n");
    for (const std::string& line : WaysToFit(job, cluster, answer.plans)) {
      absl::StrAppend(&text, Item(line));
    }
  }
  for (size_t i = 0; i < answer.plans.ranked.size(); ++i) {
    absl::StrAppend(&text, LayoutText(answer, answer.plans.ranked[i], i + 1));
  }
  return text;
}

}  // namespace convene::launcher
