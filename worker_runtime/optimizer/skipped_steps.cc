#include "worker_runtime/optimizer/skipped_steps.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {

std::string WhySkipped(double gradient_norm, int64_t step) {
  if (std::isfinite(gradient_norm)) return "";
  return absl::StrFormat(
      "skipped step %d: the gradient norm is %s; if this repeats, lower the learning rate or look "
      "at the data of this step",
      step, std::isnan(gradient_norm) ? "NaN" : "infinite");
}

absl::Status SkippedSteps::Record(int64_t step, bool skipped, double loss) {
  last_step_ = step;
  last_loss_ = loss;
  in_a_row_ = skipped ? in_a_row_ + 1 : 0;
  if (!skipped) ++updates_;
  if (in_a_row_ < most_in_a_row_) return absl::OkStatus();
  return Failure("--max-skipped-steps allows no more");
}

absl::Status SkippedSteps::AtEnd() const {
  if (updates_ > updates_before_ || in_a_row_ == 0) return absl::OkStatus();
  return Failure("no step of this run changed a weight");
}

absl::Status SkippedSteps::Failure(const char* why_it_ends) const {
  const std::string steps = in_a_row_ == 1 ? absl::StrCat("step ", last_step_, " was")
                                           : absl::StrCat("steps ", last_step_ - in_a_row_ + 1,
                                                          " to ", last_step_, " were all");
  return absl::DataLossError(absl::StrFormat(
      "%s skipped because the gradient is no number, and %s; the loss of step %d is %g. Look at "
      "the losses before these steps (--metrics-file). If they rose, lower --learning-rate or "
      "lengthen "
      "--warmup-steps and go on from a checkpoint before that; if not, look at the data",
      steps, why_it_ends, last_step_, last_loss_));
}

}  // namespace convene::worker
