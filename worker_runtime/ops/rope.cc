#include "worker_runtime/ops/rope.h"

#include <cmath>
#include <numbers>

namespace convene::worker {
namespace {

double Scaled(double frequency, const RopeScaling& scaling) {
  if (scaling.is_linear) return frequency / scaling.factor;
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
    frequencies.push_back(scaling.factor == 1 ? frequency : Scaled(frequency, scaling));
  }
  return frequencies;
}

void RopeTable(int sequence_length, int head_size, double theta, float* cosines, float* sines,
               const RopeScaling& scaling) {
  const std::vector<double> frequencies = RopeFrequencies(head_size, theta, scaling);
  for (int position = 0; position < sequence_length; ++position) {
    for (const double frequency : frequencies) {
      const double angle = position * frequency;
      *cosines++ = static_cast<float>(std::cos(angle));
      *sines++ = static_cast<float>(std::sin(angle));
    }
  }
}

}  // namespace convene::worker
