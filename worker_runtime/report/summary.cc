#include "worker_runtime/report/summary.h"

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"
#include "worker_runtime/report/number_text.h"

namespace convene::worker {
namespace {

std::string Times(int64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string WhatHappened(const TrainingSummary& summary) {
  if (summary.first_step >= summary.steps) {
    return absl::StrCat("nothing was left to do: ", summary.first_step,
                        " steps are in the checkpoint, and --steps is ", summary.steps);
  }
  std::string text = summary.step >= summary.steps
                         ? absl::StrCat("finished: ", summary.steps, " steps")
                         : absl::StrCat("stopped after step ", summary.step);
  if (summary.first_step > 0) {
    absl::StrAppend(&text, ", the first ", summary.first_step, " of them from a checkpoint");
  }
  std::vector<std::string> before;
  if (summary.restarts > 0) before.push_back(Times(summary.restarts, "restart"));
  if (summary.rollbacks > 0) before.push_back(Times(summary.rollbacks, "rollback"));
  if (!before.empty()) absl::StrAppend(&text, ", after ", absl::StrJoin(before, " and "));
  return text;
}

// A training that went wrong at its end is not to look like one that learned to its last step.
std::string WhatWasSkipped(const TrainingSummary& summary) {
  std::string text = absl::StrCat(
      summary.skipped_steps, " of ", summary.made_steps, " steps changed no weight: ",
      summary.spikes == 0 ? "their gradient was no number"
      : summary.spikes == summary.skipped_steps
          ? "loss or gradient was a spike"
          : absl::StrCat("in ", summary.spikes,
                         " of them loss or "
                         "gradient was a spike, in the others the gradient was no number"));
  if (summary.skipped_at_end > 0) {
    absl::StrAppend(
        &text, "; among them ",
        summary.skipped_at_end == 1 ? std::string("the last one")
                                    : absl::StrCat("the last ", summary.skipped_at_end),
        ". Look at the losses before: where they rose, lower --learning-rate; else look at "
        "the data of these steps");
  }
  return text;
}

// Where the time went, and how much of the machine was used.
void AddUse(const TrainingSummary& summary,
            absl::FunctionRef<void(const char* name, const std::string& value)> add) {
  if (summary.wall_time > absl::ZeroDuration()) {
    const auto share = [&](absl::Duration part) {
      return 100 * absl::FDivDuration(part, summary.wall_time);
    };
    add("goodput",
        absl::StrFormat("%.1f %% of the time in steps that are kept; %.1f %% waiting for "
                        "samples, %.1f %% held by checkpoints",
                        share(summary.kept_time), share(summary.data_time),
                        share(summary.checkpoint_time)));
  }
  if (summary.mfu.has_value()) {
    add("MFU", absl::StrFormat("%.1f %% of %.4g TFLOP/s, with all scores of attention (PaLM); "
                               "%.1f %% with the causal half of them (Megatron)",
                               100 * summary.mfu->full_attention, summary.peak / 1e12,
                               100 * summary.mfu->causal_attention));
  }
  if (summary.host_memory_peak_bytes > 0) {
    add("memory",
        absl::StrCat("at most ", HumanBytes(static_cast<double>(summary.host_memory_peak_bytes)),
                     " of the host's, by rank 0"));
  }
}

std::string HowToGoOn(const TrainingSummary& summary) {
  const bool is_finished = summary.step >= summary.steps;
  if (summary.checkpoint.empty()) {
    return is_finished ? "the model was not saved: give --checkpoint-dir DIR to keep it"
                       : "start again; with --checkpoint-dir DIR it would go on from here";
  }
  if (is_finished) {
    return absl::StrCat("the same command with --steps ", 2 * summary.step,
                        " trains as long again, at the learning rates of ", 2 * summary.step,
                        " steps");
  }
  return absl::StrCat("the same command goes on from step ", summary.checkpoint_step, " to step ",
                      summary.steps);
}

}  // namespace

std::string SummaryText(const TrainingSummary& summary) {
  std::string text = absl::StrCat(WhatHappened(summary), "\n");
  const auto add = [&text](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "  %-12s%s\n", name, value);
  };
  std::vector<std::string> losses;
  if (summary.loss.has_value()) {
    losses.push_back(absl::StrFormat("%.4f", *summary.loss));
    if (summary.loss_step != summary.step) {
      absl::StrAppend(&losses.back(), " in step ", summary.loss_step,
                      ", the last whose loss is a number");
    }
  }
  for (const ValidationMetrics& validation : summary.validations) {
    losses.push_back(absl::StrFormat("%s %.4f", validation.validation_set.value_or("validation"),
                                     validation.validation_loss));
    if (!validation.bits_per_byte.has_value()) continue;
    losses.push_back(absl::StrFormat("%.4f bits a byte", *validation.bits_per_byte));
  }
  if (!losses.empty()) add("loss", absl::StrJoin(losses, ", "));
  if (summary.skipped_steps > 0) add("skipped", WhatWasSkipped(summary));
  add("time",
      absl::StrCat(
          HumanDuration(summary.wall_time), ", ", HumanCount(summary.tokens_per_second),
          " tokens/s",
          summary.world_size == 1
              ? ""
              : absl::StrCat(", ", HumanCount(summary.tokens_per_second / summary.world_size),
                             " a rank")));
  AddUse(summary, add);
  if (!summary.metrics_file.empty()) {
    const int64_t lost = summary.lost_metrics;
    add("metrics",
        absl::StrCat(summary.metrics_file,
                     lost == 0 ? "" : absl::StrCat(", without the last ", Times(lost, "line"))));
  }
  if (!summary.checkpoint.empty()) {
    add("checkpoint", absl::StrCat(summary.checkpoint, " (step ", summary.checkpoint_step, ")"));
  }
  add("to go on", HowToGoOn(summary));
  return text;
}

}  // namespace convene::worker
