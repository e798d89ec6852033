#include "worker_runtime/trainer/reporter.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/full_disk.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/optimizer/skipped_steps.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/report/summary.h"

namespace convene::worker {
namespace {

// A run that loses so many lines in a row ends, since a person wants its metrics.
constexpr int64_t kLostLinesMax = 1000;

// The most resident memory that this program has had. The kernel's VmHWM begins with the program;
// getrusage's number has in it what this process was before it became the trainer: a Python that
// holds a data set, say. It serves where the kernel has no VmHWM (gVisor).
int64_t HostMemoryPeak() {
  const auto status = ReadFile("/proc/self/status");
  for (absl::string_view line : absl::StrSplit(status.value_or(""), '\n')) {
    int64_t kibibytes = 0;
    if (absl::ConsumePrefix(&line, "VmHWM:") && absl::ConsumeSuffix(&line, " kB") &&
        absl::SimpleAtoi(line, &kibibytes)) {
      return kibibytes << 10;
    }
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

}  // namespace

Reporter::Reporter(const TrainOptions& options, const Contract& contract, const Layout& layout,
                   int64_t first_step, Clock& clock)
    : options_(options),
      contract_(contract),
      layout_(layout),
      first_step_(first_step),
      open_step_(first_step),
      clock_(clock),
      start_(clock.Now()),
      lost_lines_(kLostLinesMax),
      printer_(stdout, contract.terminal, options.log_every) {}

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Create(const TrainOptions& options,
                                                           const Contract& contract,
                                                           const Layout& layout, int64_t first_step,
                                                           Clock& clock) {
  std::unique_ptr<Reporter> reporter(new Reporter(options, contract, layout, first_step, clock));
  CONVENE_RETURN_IF_ERROR(reporter->OpenFiles());
  return reporter;
}

absl::Status Reporter::OpenFiles() {
  metrics_.reset();
  opened_ = absl::OkStatus();
  const absl::Status opened = OpenMetrics();
  if (!absl::IsResourceExhausted(opened)) CONVENE_RETURN_IF_ERROR(opened);
  if (!opened.ok()) CONVENE_RETURN_IF_ERROR(RecordMetrics(opened));
  if (options_.tensorboard_dir.empty()) return absl::OkStatus();
  absl::StatusOr<EventFile> events =
      EventFile::Create(options_.tensorboard_dir, open_step_, WallNow());
  if (!events.ok()) return Annotate(events.status(), "tensorboard_dir");
  events_ = *std::move(events);
  return absl::OkStatus();
}

absl::Status Reporter::GoBack(int64_t step) {
  first_step_ = std::min(first_step_, step);
  open_step_ = step;
  kept_after_.resize(step - first_step_);
  kept_time_ = kept_after_.empty() ? absl::ZeroDuration() : kept_after_.back();
  skipped_at_end_ = 0;
  last_loss_.reset();
  std::erase_if(validations_, [=](const ValidationMetrics& each) { return each.step > step; });
  return OpenFiles();
}

absl::Status Reporter::OpenMetrics() {
  if (options_.metrics_file.empty() || metrics_.has_value()) return absl::OkStatus();
  const auto lost = static_cast<uint64_t>(lost_lines_.count());
  if (!opened_.ok() && !std::has_single_bit(lost)) return opened_;
  absl::StatusOr<MetricsFile> file = MetricsFile::Open(options_.metrics_file, open_step_);
  opened_ = Annotate(file.status(), "metrics_file");
  if (file.ok()) metrics_ = *std::move(file);
  return opened_;
}

absl::Status Reporter::WriteMetrics(const MetricsRecord& record) {
  WriteEvents(record);
  return WriteLine(record);
}

absl::Status Reporter::WriteLine(const MetricsRecord& record) {
  if (options_.metrics_file.empty()) return absl::OkStatus();
  absl::Status written = OpenMetrics();
  if (written.ok()) written = metrics_->Append(record);
  return RecordMetrics(written);
}

void Reporter::WriteEvents(const MetricsRecord& record) {
  if (!events_.has_value()) return;
  const absl::Status written = events_->Append(record, WallNow());
  const bool lost_before = std::exchange(loses_events_, !written.ok());
  if (loses_events_ && !lost_before) {
    Say(absl::StrCat("TensorBoard's events are lost, and the training goes on without: ",
                     written.message()));
  } else if (lost_before && !loses_events_) {
    Say("TensorBoard's events are written again");
  }
}

absl::Status Reporter::RecordMetrics(const absl::Status& written) {
  const int64_t lost_before = lost_lines_.count();
  CONVENE_RETURN_IF_ERROR(lost_lines_.Record(written));
  if (!written.ok() && lost_before == 0) {
    Say(absl::StrCat("metrics are lost, and the training goes on without: ", written.message(),
                     "; the trainer tries again, and ", lost_lines_.most(),
                     " lost lines in a row end the run"));
  } else if (written.ok() && lost_before > 0) {
    Say(absl::StrCat("metrics are written again; lines lost: ", lost_before));
  }
  return absl::OkStatus();
}

int64_t Reporter::TokensAfter(int64_t step) const {
  return SamplesAfter(RampOf(options_), step) * options_.sequence_length;
}

int64_t Reporter::TokensOf(int64_t step) const { return TokensAfter(step) - TokensAfter(step - 1); }

void Reporter::PrintProgress(const StepMetrics& metrics) {
  const int64_t step = metrics.step;
  printer_.Print({.step = step,
                  .steps = options_.steps,
                  .loss = metrics.loss,
                  .grad_norm = metrics.grad_norm,
                  .reward_accuracy = metrics.reward_accuracy,
                  .reward_margin = metrics.reward_margin,
                  .learning_rate = metrics.learning_rate,
                  .tokens_per_second = rate_.tokens_per_second(),
                  .remaining = rate_.Remaining(TokensAfter(options_.steps) - TokensAfter(step))},
                 clock_.Now());
}

absl::Status Reporter::Step(int64_t step, const StepResult& result, double learning_rate,
                            absl::Duration step_time, absl::Duration data_time) {
  const int64_t tokens = TokensOf(step);
  const double seconds = absl::ToDoubleSeconds(step_time);
  const bool is_empty = result.counted_targets == 0;
  rate_.Record(step_time, tokens);
  if (!is_empty) {
    if (std::isfinite(result.loss)) {
      last_loss_ = result.loss;
      last_loss_step_ = step;
    }
    ++made_;
    skipped_ += result.skipped ? 1 : 0;
    spikes_ += result.skipped && result.why != SkipReason::kNoNumber ? 1 : 0;
    skipped_at_end_ = result.skipped ? skipped_at_end_ + 1 : 0;
  }
  std::optional<std::string> skipped;
  if (result.why != SkipReason::kNone) skipped = SkipWord(result.why);
  std::optional<double> counted_share;
  if (options_.preference_beta == 0 && result.counted_targets < tokens) {
    counted_share = static_cast<double>(result.counted_targets) / static_cast<double>(tokens);
  }
  StepMetrics metrics = {.step = step,
                         .loss = is_empty ? kNoNumber : result.loss,
                         .grad_norm = result.grad_norm,
                         .learning_rate = learning_rate,
                         .skipped = skipped,
                         .rollbacks = rollbacks_,
                         .tokens = TokensAfter(step),
                         .counted_share = counted_share,
                         .tokens_per_second = tokens / seconds,
                         .step_seconds = seconds,
                         .epoch = contract_.epoch.value(),
                         .world_size = contract_.world_size,
                         .layout = layout_.ToString()};
  AddExperts(result, metrics);
  if (options_.preference_beta > 0 && !is_empty) {
    const auto pairs = static_cast<double>(result.counted_targets);
    metrics.reward_accuracy = result.rewards.right / pairs;
    metrics.reward_margin = result.rewards.margins / pairs;
  }
  if (!is_empty) PrintProgress(metrics);
  AddUse(step_time, data_time, metrics);
  return WriteMetrics(metrics);
}

void Reporter::AddUse(absl::Duration step_time, absl::Duration data_time, StepMetrics& metrics) {
  if (!metrics.skipped.has_value()) kept_time_ += step_time;
  if (options_.spikes.max_rollbacks > 0) kept_after_.push_back(kept_time_);
  data_time_ += data_time;
  metrics.data_seconds = absl::ToDoubleSeconds(data_time);
  metrics.host_memory_peak_bytes = HostMemoryPeak();
  if (!peak_.has_value()) return;
  const Utilization mfu = MfuOf(metrics.tokens_per_second);
  metrics.mfu_full_attention = mfu_ = mfu.full_attention;
  metrics.mfu_causal_attention = mfu.causal_attention;
}

void Reporter::SetGpu(absl::string_view description) {
  if (options_.peak_tflops > 0) {
    peak_ = 1e12 * options_.peak_tflops;
  } else if (const std::optional<Gpu> gpu = GpuOfDevice(description); gpu.has_value()) {
    peak_ = PeakOf(*gpu, options_.precision.value_or(DType::kBFloat16), options_.float8);
  } else {
    return;
  }
  ModelCounts counts(options_.model);
  flops_ = FlopsOf(options_.model, options_.sequence_length, counts);
}

Utilization Reporter::MfuOf(double tokens_per_second) const {
  return UtilizationOf(flops_, tokens_per_second / contract_.world_size, *peak_);
}

void Reporter::AddExperts(const StepResult& result, StepMetrics& metrics) {
  const ExpertTotals& experts = result.experts;
  if (experts.routings == 0) return;
  metrics.balance_loss = result.router_losses[0];
  metrics.z_loss = result.router_losses[1];
  metrics.expert_load = experts.highest_load / experts.routings;
  metrics.expert_entropy = experts.entropy / experts.routings;
  metrics.experts_in_pieces = experts.chunked / experts.routings;
  if (experts.chunked == 0 || told_of_pieces_) return;
  told_of_pieces_ = true;
  Say(absl::StrFormat(
      "step %d: more tokens chose the experts of a rank than it has memory for, in "
      "%.0f %% of the layers; they go in pieces, which is slower, and none is "
      "lost; a greater expert_memory_factor, which is %g, makes room",
      metrics.step, 100 * *metrics.experts_in_pieces, options_.model.experts.memory_factor));
}

template <typename Metrics, typename IsIt>
bool Reporter::Has(const IsIt& is_it) const {
  return !metrics_.has_value() ||
         absl::c_any_of(metrics_->of_resumed_step(), [&](const MetricsRecord& record) {
           const Metrics* const known = std::get_if<Metrics>(&record);
           return known != nullptr && is_it(*known);
         });
}

bool Reporter::HasValidation(int64_t step, const std::optional<std::string>& validation_set) const {
  return Has<ValidationMetrics>([&](const ValidationMetrics& known) {
    return known.step == step && known.validation_set == validation_set;
  });
}

bool Reporter::HasSample(int64_t step) const {
  return Has<SampleMetrics>([&](const SampleMetrics& known) { return known.step == step; });
}

absl::Status Reporter::Validation(const ValidationMetrics& validation) {
  const auto last = absl::c_find_if(validations_, [&](const ValidationMetrics& known) {
    return known.validation_set == validation.validation_set;
  });
  if (last == validations_.end()) {
    validations_.push_back(validation);
  } else {
    *last = validation;
  }
  std::string text = "validation loss";
  if (validation.validation_set.has_value()) {
    absl::StrAppend(&text, " of ", *validation.validation_set);
  }
  absl::StrAppendFormat(&text, " %.4f after step %d", validation.validation_loss, validation.step);
  if (validation.bits_per_byte.has_value()) {
    absl::StrAppendFormat(&text, ", %.4f bits a byte", *validation.bits_per_byte);
  }
  if (validation.reward_accuracy.has_value()) {
    absl::StrAppendFormat(&text, ", %.0f %% of the pairs right, margin %.3f",
                          100 * *validation.reward_accuracy, *validation.reward_margin);
  }
  Say(text);
  if (HasValidation(validation.step, validation.validation_set)) return absl::OkStatus();
  return WriteMetrics(validation);
}

absl::Status Reporter::Sample(const SampleMetrics& sample) {
  Say(absl::StrCat("sample after step ", sample.step, ": ", JsonText(sample.sample_prompt), " ",
                   JsonText(sample.sample_text)));
  return WriteLine(sample);
}

void Reporter::Checkpoint(int64_t step, const std::string& path) {
  checkpoint_step_ = step;
  checkpoint_ = path;
}

absl::Status Reporter::CheckpointSaved(const std::string& path, const CheckpointMetrics& metrics) {
  Checkpoint(metrics.step, path);
  checkpoint_time_ += absl::Seconds(metrics.checkpoint_held_seconds);
  return WriteMetrics(metrics);
}

void Reporter::CheckpointFailed(int64_t step, const absl::Status& why,
                                const FailuresInARow& failures, absl::Duration pause) {
  const std::string next =
      pause > absl::ZeroDuration()
          ? absl::StrCat("It is the last, so the trainer tries again in ",
                         absl::FormatDuration(pause))
          : absl::StrCat("The next save tries again; the newest checkpoint is ",
                         checkpoint_.empty() ? "none yet" : checkpoint_);
  // An older checkpoint goes when a newer one is whole.
  const std::string room =
      TellsFullDisk(why)
          ? absl::StrCat("--checkpoint-keep ", options_.checkpoint_keep, " wants room for ",
                         options_.checkpoint_keep + 1, " checkpoints. ")
          : "";
  Say(absl::StrCat("no checkpoint after step ", step, " (", failures.count(), " of ",
                   failures.most(), " failures in a row that end the run): ", why.message(), ". ",
                   room, next));
}

void Reporter::Say(const std::string& text) {
  printer_.EndLine();
  std::fprintf(stdout, "%s\n", text.c_str());
  std::fflush(stdout);
}

void Reporter::Summary(int64_t step) {
  printer_.EndLine();
  const absl::Duration wall_time = clock_.Now() - start_;
  const auto tokens = static_cast<double>(TokensAfter(step) - TokensAfter(first_step_));
  const double tokens_per_second = tokens / absl::ToDoubleSeconds(wall_time);
  std::optional<Utilization> mfu;
  if (peak_.has_value()) mfu = MfuOf(tokens_per_second);
  const std::string text = SummaryText({.first_step = first_step_,
                                        .step = step,
                                        .steps = options_.steps,
                                        .loss = last_loss_,
                                        .loss_step = last_loss_step_,
                                        .made_steps = made_,
                                        .skipped_steps = skipped_,
                                        .spikes = spikes_,
                                        .skipped_at_end = skipped_at_end_,
                                        .validations = validations_,
                                        .wall_time = wall_time,
                                        .tokens_per_second = tokens_per_second,
                                        .world_size = contract_.world_size,
                                        .kept_time = kept_time_,
                                        .data_time = data_time_,
                                        .checkpoint_time = checkpoint_time_,
                                        .mfu = mfu,
                                        .peak = peak_.value_or(0),
                                        .host_memory_peak_bytes = HostMemoryPeak(),
                                        .restarts = contract_.attempt,
                                        .rollbacks = rollbacks_.value_or(0),
                                        .checkpoint = checkpoint_,
                                        .checkpoint_step = checkpoint_step_,
                                        .metrics_file = options_.metrics_file,
                                        .lost_metrics = lost_lines_.count()});
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace convene::worker
