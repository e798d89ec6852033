#include "worker_runtime/optimizer/learning_rate.h"

#include <cmath>
#include <numbers>

#include "tools/base/check.h"

namespace convene::worker {

double LearningRateAt(const LearningRateSchedule& schedule, int64_t step) {
  CONVENE_CHECK(step >= 1);
  if (step <= schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  if (step >= schedule.total_steps) return schedule.minimum;
  const double progress = static_cast<double>(step - schedule.warmup_steps) /
                          static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  const double cosine = std::cos(std::numbers::pi * progress);
  return schedule.minimum + (schedule.peak - schedule.minimum) * (1.0 + cosine) / 2.0;
}

}  // namespace convene::worker
