// Rank 0's reports to the person: progress, metrics, the last summary. Other ranks have no
// reporter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/checkpointing/failures.h"
#include "worker_runtime/checkpointing/saver.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/planner/counts.h"
#include "worker_runtime/planner/utilization.h"
#include "worker_runtime/report/event_file.h"
#include "worker_runtime/report/metrics.h"
#include "worker_runtime/report/progress.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// Not thread-safe.
class Reporter final : public SaveListener {
 public:
  // Opens the metrics file, and one of TensorBoard's events. `options` is borrowed. Errors:
  // EventFile::Create's and MetricsFile::Open's; but for a full disk of the metrics: that is
  // only reported, and opening, which reads the whole file, is tried again after 1, 2, 4, 8, ...
  // lost lines.
  static absl::StatusOr<std::unique_ptr<Reporter>> Create(const TrainOptions& options,
                                                          const Contract& contract,
                                                          const Layout& layout, int64_t first_step,
                                                          Clock& clock);

  // A line that cannot be written to the metrics file is lost; the first of several lost lines is
  // reported. Errors of the three functions: the file's, when too many lines in a row were lost.
  // A step of which no target counts has no loss: its line says null, and there is no progress
  // line.
  // `data_time`: of step_time, this rank waited for samples.
  absl::Status Step(int64_t step, const StepResult& result, double learning_rate,
                    absl::Duration step_time, absl::Duration data_time = absl::ZeroDuration());
  // Steps tell their MFU from now on, if TrainOptions::peak_tflops or the planner, which knows the
  // GPU by this name, tell the peak.
  void SetGpu(absl::string_view description);
  // Of the last step, with all scores of attention; 0: not known.
  double mfu() const { return mfu_; }
  // `validation_loss`: nats a target that counts. A line that HasValidation is not written again.
  absl::Status Validation(const ValidationMetrics& validation);
  absl::Status Sample(const SampleMetrics& sample);
  // Whether the metrics file had such a line when it was opened, of the step after which the
  // training goes on. Without a metrics file nobody knows, and it counts as told.
  bool HasValidation(int64_t step, const std::optional<std::string>& validation_set) const;
  bool HasSample(int64_t step) const;
  // The summary names it: the newest, saved by this run or the one that it resumed from.
  void Checkpoint(int64_t step, const std::string& path);
  // SaveListener. Errors: as Step.
  absl::Status CheckpointSaved(const std::string& path, const CheckpointMetrics& metrics) override;
  void CheckpointFailed(int64_t step, const absl::Status& why, const FailuresInARow& failures,
                        absl::Duration pause) override;
  // The training goes on after the earlier step: the lines of later ones go, and their time was
  // lost. Errors as Create.
  absl::Status GoBack(int64_t step);
  // Lines of steps say so from now on.
  void SetRollbacks(int64_t count) {
    if (count > 0) rollbacks_ = count;
  }
  // Writes a line between the progress lines.
  void Say(const std::string& text) override;
  // `step` is the last finished one.
  void Summary(int64_t step);

 private:
  Reporter(const TrainOptions& options, const Contract& contract, const Layout& layout,
           int64_t first_step, Clock& clock);

  void PrintProgress(const StepMetrics& metrics);
  void AddUse(absl::Duration step_time, absl::Duration data_time, StepMetrics& metrics);
  // REQUIRES: peak_.
  Utilization MfuOf(double tokens_per_second) const;
  // Of a model with experts; says once that memory was short.
  void AddExperts(const StepResult& result, StepMetrics& metrics);
  int64_t TokensAfter(int64_t step) const;
  int64_t TokensOf(int64_t step) const;
  // Both files anew, behind open_step_.
  absl::Status OpenFiles();
  absl::Status OpenMetrics();
  // Writes TensorBoard's events; the first of several that are lost is reported.
  void WriteEvents(const MetricsRecord& record);
  // To both files.
  absl::Status WriteMetrics(const MetricsRecord& record);
  // Whether `is_it` holds for one of MetricsFile::of_resumed_step that is of this kind. True
  // without a file.
  template <typename Metrics, typename IsIt>
  bool Has(const IsIt& is_it) const;
  // To the metrics file alone.
  absl::Status WriteLine(const MetricsRecord& record);
  // Reports changes; returns the error that ends the training.
  absl::Status RecordMetrics(const absl::Status& written);

  const TrainOptions& options_;
  const Contract contract_;
  const Layout layout_;
  int64_t first_step_;  // finished when the process began, and never taken back
  int64_t open_step_;   // finished when the files were opened
  Clock& clock_;
  const MonotonicTime start_;
  std::optional<MetricsFile> metrics_;
  absl::Status opened_;  // how the last attempt to open it went
  FailuresInARow lost_lines_;
  std::optional<EventFile> events_;
  bool loses_events_ = false;
  ProgressPrinter printer_;
  TokenRate rate_;
  std::optional<double> last_loss_;  // that is a number
  int64_t last_loss_step_ = 0;
  int64_t made_ = 0;  // steps, with those that were taken back
  int64_t skipped_ = 0;
  int64_t spikes_ = 0;
  std::optional<int64_t> rollbacks_;
  bool told_of_pieces_ = false;
  std::optional<double> peak_;  // FLOP/s of a GPU
  TokenFlops flops_;            // meaningful with peak_
  double mfu_ = 0;
  absl::Duration kept_time_, data_time_, checkpoint_time_;
  // kept_time_ after each step from first_step_ on; only of a training that may go back.
  std::vector<absl::Duration> kept_after_;
  int64_t skipped_at_end_ = 0;
  std::vector<ValidationMetrics> validations_;  // the last one of each set
  std::string checkpoint_;
  int64_t checkpoint_step_ = 0;
};

}  // namespace convene::worker
