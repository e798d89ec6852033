// PURE. The learning rate of a step: linear warm-up, then the way down.
#pragma once

#include <cstdint>

namespace convene::worker {

enum class RateShape {
  kLinear,
  kCosine,           // half a cosine (Loshchilov and Hutter 2016, SGDR, one cycle)
  kWsdLinear,        // warm-up, stable, decay (Hu et al. 2024, MiniCPM, section 4): down in a line
  kWsdOneMinusSqrt,  // the same, down as 1 - sqrt(t) (Haegele et al. 2024, section 3)
  kConstant,
  kInverseSqrt,  // (Vaswani et al. 2017, section 5.3), scaled so that the warm-up ends at the peak
};

// Whether the shape has decay_steps.
inline bool IsWsd(RateShape shape) {
  return shape == RateShape::kWsdLinear || shape == RateShape::kWsdOneMinusSqrt;
}

struct LearningRateSchedule {
  RateShape shape = RateShape::kCosine;
  double peak = 0;
  double minimum = 0;  // of all but kConstant
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // of the two kWsd: the last ones
  int64_t total_steps = 0;
};

// Steps count from 1, as in UpdateParameters.
//   step <= warmup_steps:  peak * step / warmup_steps
//   kConstant:             peak
//   kInverseSqrt:          the larger of minimum and peak * sqrt(max(1, warmup_steps) / step)
//   the others:            minimum + (peak - minimum) * share(t), and share(t) is
//     kLinear, kWsdLinear  1 - t
//     kCosine              (1 + cos(pi * t)) / 2
//     kWsdOneMinusSqrt     1 - sqrt(t)
// t goes from 0 to 1 over the steps behind the warm-up, of the two kWsd over the last decay_steps;
// outside of these it is 0 or 1. The first line that applies counts. So the peak is reached at step
// warmup_steps, and the first step has rate 0 only where it is the last one too and minimum is 0.
// REQUIRES: step >= 1.
double LearningRateAt(const LearningRateSchedule& schedule, int64_t step);

}  // namespace convene::worker
