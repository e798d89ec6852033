#include "worker_runtime/ops/rope.h"

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

double YarnScale(const RopeScaling& scaling, double mscale) {
  const bool is_scaled = scaling.kind == RopeScalingKind::kYarn && scaling.factor > 1;
  return is_scaled ? 0.1 * mscale * std::log(scaling.factor) + 1 : 1;
}

double RopeAmplitude(const RopeScaling& scaling) {
  if (scaling.kind != RopeScalingKind::kYarn) return 1;
  if (scaling.amplitude > 0) return scaling.amplitude;
  if (scaling.mscale == 0 || scaling.mscale_all_dim == 0) return YarnScale(scaling, 1);
  return YarnScale(scaling, scaling.mscale) / YarnScale(scaling, scaling.mscale_all_dim);
}

void RopeTable(int sequence_length, int head_size, double theta, float* cosines, float* sines,
               const RopeScaling& scaling) {
  const std::vector<double> frequencies = RopeFrequencies(head_size, theta, scaling);
  const double amplitude = RopeAmplitude(scaling);
  for (int position = 0; position < sequence_length; ++position) {
    for (const double frequency : frequencies) {
      const double angle = position * frequency;
      *cosines++ = static_cast<float>(amplitude * std::cos(angle));
      *sines++ = static_cast<float>(amplitude * std::sin(angle));
    }
  }
}

}  // namespace convene::worker
