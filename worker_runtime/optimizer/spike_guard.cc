#include "worker_runtime/optimizer/spike_guard.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace convene::worker {

StepLimits SpikeGuard::Limits() const {
  StepLimits limits;
  if (count_ < options_.window) return limits;
  if (options_.max_loss > 0) limits.loss = options_.max_loss * loss_;
  if (options_.max_gradient > 0) limits.gradient_norm = options_.max_gradient * gradient_norm_;
  return limits;
}

void SpikeGuard::Record(double loss, double gradient_norm) {
  ++count_;
  const auto steps = static_cast<double>(std::min(count_, options_.window));
  loss_ += (loss - loss_) / steps;
  gradient_norm_ += (gradient_norm - gradient_norm_) / steps;
}

bool SpikeGuard::GoesBack(SkipReason why) const {
  const bool is_spike = why == SkipReason::kLossSpike || why == SkipReason::kGradientSpike;
  return is_spike && rollbacks_ < options_.max_rollbacks;
}

void SpikeGuard::WentBack(int64_t samples) {
  ++rollbacks_;
  skipped_samples_ += samples;
}

void SpikeGuard::KeepRollbacks(const SpikeGuard& later) {
  if (later.rollbacks_ <= rollbacks_) return;
  rollbacks_ = later.rollbacks_;
  skipped_samples_ = later.skipped_samples_;
}

std::string SpikeGuard::State() const {
  if (!is_on() && rollbacks_ == 0) return "";
  std::string state = absl::StrFormat("%d %.17g %.17g", count_, loss_, gradient_norm_);
  if (rollbacks_ > 0) absl::StrAppend(&state, " ", rollbacks_, " ", skipped_samples_);
  return state;
}

absl::Status SpikeGuard::Restore(const std::string& state) {
  if (state.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(state, ' ');
  const bool has_means = parts.size() >= 3 && absl::SimpleAtoi(parts[0], &count_) && count_ >= 0 &&
                         absl::SimpleAtod(parts[1], &loss_) &&
                         absl::SimpleAtod(parts[2], &gradient_norm_);
  const bool has_rollbacks = parts.size() == 5 && absl::SimpleAtoi(parts[3], &rollbacks_) &&
                             absl::SimpleAtoi(parts[4], &skipped_samples_) && rollbacks_ > 0 &&
                             skipped_samples_ >= 0;
  if (has_means && (has_rollbacks || parts.size() == 3)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("the checkpoint's means for the spike guard, '", state,
                                          "', are not a count and two numbers, perhaps with two "
                                          "more of rollbacks: go on from another checkpoint"));
}

}  // namespace convene::worker
