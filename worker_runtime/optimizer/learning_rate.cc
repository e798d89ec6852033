#include "worker_runtime/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tools/base/check.h"

namespace convene::worker {
namespace {

// How far the step is on the way down, from 0 to 1.
double Progress(const LearningRateSchedule& schedule, int64_t step) {
  const int64_t begin =
      IsWsd(schedule.shape) ? schedule.total_steps - schedule.decay_steps : schedule.warmup_steps;
  if (step <= begin) return 0;
  if (step >= schedule.total_steps) return 1;
  return static_cast<double>(step - begin) / static_cast<double>(schedule.total_steps - begin);
}

}  // namespace

double LearningRateAt(const LearningRateSchedule& schedule, int64_t step) {
  CONVENE_CHECK(step >= 1);
  if (step <= schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  const double t = Progress(schedule, step);
  double share = 1 - t;
  switch (schedule.shape) {
    case RateShape::kLinear:
    case RateShape::kWsdLinear:
      break;
    case RateShape::kCosine:
      share = (1 + std::cos(std::numbers::pi * t)) / 2;
      break;
    case RateShape::kWsdOneMinusSqrt:
      share = 1 - std::sqrt(t);
      break;
    case RateShape::kConstant:
      return schedule.peak;
    case RateShape::kInverseSqrt: {
      const auto warmup = static_cast<double>(std::max<int64_t>(1, schedule.warmup_steps));
      return std::max(schedule.minimum,
                      schedule.peak * std::sqrt(warmup / static_cast<double>(step)));
    }
  }
  return schedule.minimum + (schedule.peak - schedule.minimum) * share;
}

}  // namespace convene::worker
