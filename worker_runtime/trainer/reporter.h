// What rank 0 tells the person: progress, metrics, the last summary. Other ranks have none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/report/metrics.h"
#include "worker_runtime/report/progress.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/options.h"

namespace convene::worker {

// Not thread-safe.
class Reporter {
 public:
  // Opens the metrics file. `options` is borrowed. Errors: MetricsFile::Open's.
  static absl::StatusOr<std::unique_ptr<Reporter>> Create(const TrainOptions& options,
                                                          const Contract& contract,
                                                          const Layout& layout, int64_t first_step,
                                                          Clock& clock);

  absl::Status Step(int64_t step, const StepResult& result, double learning_rate,
                    absl::Duration step_time);
  absl::Status Validation(int64_t step, double loss);
  void Checkpoint(int64_t step, const std::string& path);
  // A line between the progress lines.
  void Say(const std::string& text);
  // `step` is the last finished one.
  void Summary(int64_t step);

 private:
  Reporter(const TrainOptions& options, const Contract& contract, const Layout& layout,
           int64_t first_step, Clock& clock);

  const TrainOptions& options_;
  const Contract contract_;
  const Layout layout_;
  const int64_t first_step_;
  Clock& clock_;
  const MonotonicTime start_;
  std::optional<MetricsFile> metrics_;
  ProgressPrinter printer_;
  StepRate rate_;
  double last_loss_ = 0;
  std::optional<double> validation_loss_;
  std::string checkpoint_;
  int64_t checkpoint_step_ = 0;
};

}  // namespace convene::worker
