// PURE. The learning rate of a step: linear warm-up, then half a cosine down to a minimum
// (Loshchilov and Hutter 2016, SGDR, one cycle).
#pragma once

#include <cstdint>

namespace convene::worker {

struct LearningRateSchedule {
  double peak = 0;
  double minimum = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
};

// Steps count from 1, as in UpdateParameters.
//   step <= warmup_steps:  peak * step / warmup_steps
//   step >= total_steps:   minimum
//   between:               minimum + (peak - minimum) * (1 + cos(pi * t)) / 2, t = (step -
//   warmup_steps) / (total_steps - warmup_steps)
// The first line that applies counts. So the peak is reached at step warmup_steps, and the first
// step never has rate 0. REQUIRES: step >= 1.
double LearningRateAt(const LearningRateSchedule& schedule, int64_t step);

}  // namespace convene::worker
