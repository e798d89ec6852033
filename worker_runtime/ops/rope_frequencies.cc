#include "worker_runtime/ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace convene::worker {
namespace {

// The number, as a fraction, of the frequency that turns so many times within the original context.
double NumberWithWaves(double waves, int size, double theta, const RopeScaling& scaling) {
  return size * std::log(scaling.original_positions / (waves * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

// A part of each frequency is divided, and the rest stays.
double YarnScaled(int i, double frequency, int size, double theta, const RopeScaling& scaling) {
  const auto number = [&](double waves) { return NumberWithWaves(waves, size, theta, scaling); };
  double low = number(scaling.high_frequency_factor);
  double high = number(scaling.low_frequency_factor);
  if (scaling.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1.0);
  if (high == low) high += 0.001;
  const double divided = std::clamp((i - low) / (high - low), 0.0, 1.0);
  return frequency * (divided / scaling.factor + 1 - divided);
}

double Scaled(double frequency, const RopeScaling& scaling) {
  if (scaling.kind == RopeScalingKind::kLinear) return frequency / scaling.factor;
  // Whole waves within the original context.
  const double waves = scaling.original_positions * frequency / (2 * std::numbers::pi);
  if (waves < scaling.low_frequency_factor) return frequency / scaling.factor;
  if (waves > scaling.high_frequency_factor) return frequency;
  const double kept = (waves - scaling.low_frequency_factor) /
                      (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

std::vector<double> RopeFrequencies(int head_size, double theta, const RopeScaling& scaling) {
  std::vector<double> frequencies;
  for (int i = 0; i < head_size / 2; ++i) {
    const double frequency = std::pow(theta, -2.0 * i / head_size);
    if (scaling.factor == 1) {
      frequencies.push_back(frequency);
    } else if (scaling.kind == RopeScalingKind::kYarn) {
      frequencies.push_back(YarnScaled(i, frequency, head_size, theta, scaling));
    } else {
      frequencies.push_back(Scaled(frequency, scaling));
    }
  }
  return frequencies;
}

}  // namespace convene::worker
