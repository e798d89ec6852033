#include "worker_runtime/trainer/reporter.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/report/summary.h"

namespace convene::worker {

Reporter::Reporter(const TrainOptions& options, const Contract& contract, const Layout& layout,
                   int64_t first_step, Clock& clock)
    : options_(options),
      contract_(contract),
      layout_(layout),
      first_step_(first_step),
      clock_(clock),
      start_(clock.Now()),
      printer_(stdout, contract.terminal, options.log_every) {}

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Create(const TrainOptions& options,
                                                           const Contract& contract,
                                                           const Layout& layout, int64_t first_step,
                                                           Clock& clock) {
  std::unique_ptr<Reporter> reporter(new Reporter(options, contract, layout, first_step, clock));
  if (!options.metrics_file.empty()) {
    CONVENE_ASSIGN_OR_RETURN(reporter->metrics_,
                             MetricsFile::Open(options.metrics_file, first_step));
  }
  return reporter;
}

absl::Status Reporter::Step(int64_t step, const StepResult& result, double learning_rate,
                            absl::Duration step_time) {
  const int64_t tokens = options_.global_batch_size * options_.sequence_length;
  const double seconds = absl::ToDoubleSeconds(step_time);
  last_loss_ = result.loss;
  rate_.Record(step_time);
  printer_.Print({.step = step,
                  .steps = options_.steps,
                  .loss = result.loss,
                  .grad_norm = result.grad_norm,
                  .learning_rate = learning_rate,
                  .tokens_per_second = tokens / absl::ToDoubleSeconds(rate_.step_time()),
                  .remaining = rate_.Remaining(options_.steps - step)},
                 clock_.Now());
  if (!metrics_.has_value()) return absl::OkStatus();
  return metrics_->Append(StepMetrics{.step = step,
                                      .loss = result.loss,
                                      .grad_norm = result.grad_norm,
                                      .learning_rate = learning_rate,
                                      .tokens = step * tokens,
                                      .tokens_per_second = tokens / seconds,
                                      .step_seconds = seconds,
                                      .epoch = contract_.epoch.value(),
                                      .world_size = contract_.world_size,
                                      .layout = layout_.ToString()});
}

absl::Status Reporter::Validation(int64_t step, double loss) {
  validation_loss_ = loss;
  Say(absl::StrFormat("validation loss %.4f after step %d", loss, step));
  if (!metrics_.has_value()) return absl::OkStatus();
  return metrics_->Append(ValidationMetrics{.step = step, .validation_loss = loss});
}

void Reporter::Checkpoint(int64_t step, const std::string& path) {
  checkpoint_step_ = step;
  checkpoint_ = path;
}

void Reporter::Say(const std::string& text) {
  printer_.EndLine();
  std::fprintf(stdout, "%s\n", text.c_str());
  std::fflush(stdout);
}

void Reporter::Summary(int64_t step) {
  printer_.EndLine();
  const absl::Duration wall_time = clock_.Now() - start_;
  const double tokens = static_cast<double>(step - first_step_) * options_.global_batch_size *
                        options_.sequence_length;
  const std::string text =
      SummaryText({.first_step = first_step_,
                   .step = step,
                   .steps = options_.steps,
                   .loss = last_loss_,
                   .validation_loss = validation_loss_,
                   .wall_time = wall_time,
                   .tokens_per_second = tokens / absl::ToDoubleSeconds(wall_time),
                   .restarts = std::max<int64_t>(0, contract_.epoch.value() - 1),
                   .checkpoint = checkpoint_,
                   .checkpoint_step = checkpoint_step_,
                   .metrics_file = options_.metrics_file});
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace convene::worker
