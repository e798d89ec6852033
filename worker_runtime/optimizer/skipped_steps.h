// PURE. Decides when a run whose gradients are NaN or infinite has to end, or one that skips its
// steps for other reasons and learns nothing.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

// The word for the metrics; "" for kNone.
const char* SkipWord(SkipReason why);
// Why a step with this loss and gradient norm changed nothing (ControlStep), for the log; "" when
// it did.
std::string WhySkipped(SkipReason why, double loss, double gradient_norm, const StepLimits& limits,
                       int64_t step);
// The same for a step of which no target counts.
std::string WhyEmpty(int64_t step);

// Counts the steps that were skipped, and the others. Every rank sees the same norms, so all ranks
// come to the same answer at the same step.
class SkippedSteps {
 public:
  // `updates`: steps that changed the weights before this run, from its checkpoint. REQUIRES:
  // most_in_a_row >= 1.
  explicit SkippedSteps(int64_t most_in_a_row, int64_t updates = 0)
      : most_in_a_row_(most_in_a_row), updates_(updates) {}

  // Call it after each step. DataLoss when this step and the most_in_a_row - 1 before it were
  // skipped: the text names the steps and the loss, and says where to look.
  absl::Status Record(int64_t step, SkipReason why, double loss);

  // Call it instead after a step of which no target counts. Such steps are no fault of the run:
  // they neither lengthen a row of skipped ones nor end it.
  void RecordEmpty();

  // Steps so far that changed the weights: Adam's bias correction counts these alone.
  int64_t updates() const { return updates_; }

  // Call it after the last step. DataLoss when the last steps were skipped, and are more than all
  // steps of the job that changed a weight: a job shorter than most_in_a_row would else call a
  // broken training finished. DataLoss also when no target of the whole job counts. Updates
  // before a resume count as others do; a row of skipped steps begins anew there.
  absl::Status AtEnd() const;

 private:
  absl::Status Failure(const std::string& why_it_ends) const;

  int64_t most_in_a_row_;
  int64_t updates_;
  int64_t in_a_row_ = 0;
  int64_t first_step_ = 0;  // of the row
  int64_t last_step_ = 0;   // of the row
  int64_t spikes_ = 0;      // of the row
  int64_t empty_steps_ = 0;
  double last_loss_ = 0;
};

}  // namespace convene::worker
