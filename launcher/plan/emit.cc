#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/json_text.h"
#include "launcher/plan/report.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/explain.h"
#include "worker_runtime/planner/train_yaml.h"

namespace convene::launcher {
namespace {

using worker::Estimate;
using worker::Strategy;

// Of usual machines. Without a number Slurm gives a task one CPU, and all workers share it.
constexpr int kCpusPerGpu = 12;

std::string JsonNumbers(const std::vector<std::pair<const char*, double>>& numbers) {
  std::string text;
  for (const auto& [name, value] : numbers) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", JsonText(name), ": ",
                    absl::StrFormat("%.9g", value));
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
                   {"communication", memory.communication}}),
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
  return absl::StrCat(
      "#!/bin/bash\n# Made by `convene plan`; train.yaml beside it is what --emit train.yaml "
      "prints.\n# tools/deploy/slurm/train.sbatch says what each line is for, and how a job comes "
      "back to the queue.\n#SBATCH --job-name=",
      answer.flags.model, "\n#SBATCH --nodes=", cluster.gpus / cluster.gpu.node,
      "\n#SBATCH --gpus-per-node=", cluster.gpu.node, "\n# CHANGE: the CPUs of a node; here ",
      kCpusPerGpu, " a GPU.\n#SBATCH --cpus-per-task=", kCpusPerGpu * cluster.gpu.node,
      "\n#SBATCH --ntasks-per-node=1\n#SBATCH --output=%x-%j.log\n#SBATCH --open-mode=append\n"
      "#SBATCH --requeue\n#SBATCH --signal=TERM@120\n\n",
      ": \"${RUN:=$SLURM_SUBMIT_DIR/runs/$SLURM_JOB_NAME}\"\nmkdir -p \"$RUN\"\n"
      "# Slurm 22.05 and 23.02 do not hand the job's CPUs on to srun by themselves.\n"
      "[ -z \"${SLURM_CPUS_PER_TASK:-}\" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"
      "srun --kill-on-bad-exit=0 \\\n  convene run --nproc-per-node gpu --max-restarts 3 "
      "--stop-grace signal=100 --log-dir \"$RUN/logs\" \\\n  convene-train --config train.yaml "
      "--checkpoint-dir \"$RUN/checkpoints\" --metrics-file \"$RUN/metrics.jsonl\" \"$@\"\n");
}

}  // namespace convene::launcher
