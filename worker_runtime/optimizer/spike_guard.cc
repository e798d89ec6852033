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

std::string SpikeGuard::State() const {
  return is_on() ? absl::StrFormat("%d %.17g %.17g", count_, loss_, gradient_norm_) : "";
}

absl::Status SpikeGuard::Restore(const std::string& state) {
  if (state.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(state, ' ');
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &count_) && count_ >= 0 &&
      absl::SimpleAtod(parts[1], &loss_) && absl::SimpleAtod(parts[2], &gradient_norm_)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("the checkpoint's means for the spike guard, '", state,
                   "', are not a count and two numbers: go on from another checkpoint"));
}

}  // namespace convene::worker
