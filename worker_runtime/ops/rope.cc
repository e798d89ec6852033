#include "worker_runtime/ops/rope.h"

#include <cmath>
#include <vector>

#include "worker_runtime/ops/rope_frequencies.h"

namespace convene::worker {

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
