// The words of the trainer to each rule that updates weights (optimizer/update_rule.h), of one
// step.
#pragma once

#include <cstdint>
#include <limits>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// A rule uses those that its formula has.
struct UpdateParameters {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  double momentum = 0.9;
  bool nesterov = false;
  int64_t step = 1;  // counts from 1
};

enum class SkipReason : int32_t { kNone, kNoNumber, kLossSpike, kGradientSpike };

// A step above one of them is skipped.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();  // before clipping
};

// How a step treats its gradients; the device decides it, so that no host waits for the norm.
struct StepControl {
  float gradient_scale;  // multiplies every gradient first: the clipping factor
  SkipReason skip;       // not kNone: weights and moments stay as they are
};

// From the global norm and the most that is not clipped (0 = no clipping), as
// torch.nn.utils.clip_grad_norm_: gradient_scale = min(1, max_norm / (norm + 1e-6)). A norm that is
// infinite or NaN skips the step, and so does one above the limits, or a loss above them; `loss` is
// in the unit of limits.loss.
CONVENE_HOST_DEVICE inline StepControl ControlStep(double norm, double loss, double max_norm,
                                                   const StepLimits& limits) {
  if (!(norm <= 1.7976931348623157e308)) return {0.0f, SkipReason::kNoNumber};
  if (loss > limits.loss) return {0.0f, SkipReason::kLossSpike};
  if (norm > limits.gradient_norm) return {0.0f, SkipReason::kGradientSpike};
  if (max_norm == 0) return {1.0f, SkipReason::kNone};
  const double scale = max_norm / (norm + 1e-6);
  return {scale < 1 ? static_cast<float>(scale) : 1.0f, SkipReason::kNone};
}

// *control = ControlStep(sqrt(*sum_of_squares), *loss, max_norm, limits), all three in the device's
// memory.
void DecideStep(const double* sum_of_squares, const double* loss, double max_norm,
                const StepLimits& limits, StepControl* control, Stream& stream);

}  // namespace convene::worker
