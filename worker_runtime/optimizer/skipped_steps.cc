#include "worker_runtime/optimizer/skipped_steps.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {

const char* SkipWord(SkipReason why) {
  switch (why) {
    case SkipReason::kNone:
      return "";
    case SkipReason::kNoNumber:
      return "no_number";
    case SkipReason::kLossSpike:
      return "loss_spike";
    case SkipReason::kGradientSpike:
      return "gradient_spike";
  }
  return "";
}

std::string WhySkipped(SkipReason why, double loss, double gradient_norm, const StepLimits& limits,
                       int64_t step) {
  switch (why) {
    case SkipReason::kNone:
      return "";
    case SkipReason::kNoNumber:
      return absl::StrFormat(
          "skipped step %d: the gradient norm is %s; if this repeats, lower the learning rate or "
          "look at the data of this step",
          step, std::isnan(gradient_norm) ? "NaN" : "infinite");
    case SkipReason::kLossSpike:
      return absl::StrFormat(
          "skipped step %d: the loss %.4f is above %.4f, as --max-loss-spike says", step, loss,
          limits.loss);
    case SkipReason::kGradientSpike:
      return absl::StrFormat(
          "skipped step %d: the gradient norm %.4f is above %.4f, as --max-gradient-spike says",
          step, gradient_norm, limits.gradient_norm);
  }
  return "";
}

std::string WhyEmpty(int64_t step) {
  return absl::StrFormat("step %d changes nothing: none of its targets counts in the loss", step);
}

void SkippedSteps::RecordEmpty() { ++empty_steps_; }

absl::Status SkippedSteps::Record(int64_t step, SkipReason why, double loss) {
  const bool skipped = why != SkipReason::kNone;
  if (in_a_row_ == 0) {
    first_step_ = step;
    spikes_ = 0;
  }
  if (skipped && why != SkipReason::kNoNumber) ++spikes_;
  last_step_ = step;
  last_loss_ = loss;
  in_a_row_ = skipped ? in_a_row_ + 1 : 0;
  if (!skipped) ++updates_;
  if (in_a_row_ < most_in_a_row_) return absl::OkStatus();
  return Failure("--max-skipped-steps allows no more");
}

absl::Status SkippedSteps::AtEnd() const {
  if (in_a_row_ > updates_) {
    if (updates_ == 0) return Failure("no step of this job changed a weight");
    return Failure(absl::StrCat("only ", updates_, updates_ == 1 ? " step" : " steps",
                                " changed a weight before them"));
  }
  if (updates_ > 0 || empty_steps_ == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "no weight has changed: of none of this run's ", empty_steps_,
      " steps a single target counts in the loss. Look at the tokens that count with `convene data "
      "show`; --train-on all lets all count"));
}

absl::Status SkippedSteps::Failure(const std::string& why_it_ends) const {
  const std::string steps =
      in_a_row_ == 1 ? absl::StrCat("step ", last_step_, " was")
                     : absl::StrCat("steps ", first_step_, " to ", last_step_, " were all");
  if (spikes_ > 0) {
    return absl::DataLossError(absl::StrFormat(
        "%s skipped%s because loss or gradient was a spike, and %s; the loss of step %d is %g. If "
        "the losses stay where they are now, they are no spikes: raise --max-loss-spike and "
        "--max-gradient-spike. Else look at the data of these steps, or lower --learning-rate",
        steps, spikes_ < in_a_row_ ? absl::StrCat(", ", spikes_, " of them") : "", why_it_ends,
        last_step_, last_loss_));
  }
  return absl::DataLossError(absl::StrFormat(
      "%s skipped because the gradient is no number, and %s; the loss of step %d is %g. Look at "
      "the losses before these steps (--metrics-file). If they rose, lower --learning-rate or "
      "lengthen --warmup-steps and go on from a checkpoint before that; if not, look at the data",
      steps, why_it_ends, last_step_, last_loss_));
}

}  // namespace convene::worker
