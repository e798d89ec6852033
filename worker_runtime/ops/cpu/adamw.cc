#include "worker_runtime/ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker {
namespace {

constexpr int64_t kBlock = 1 << 13;

// The update's constants, computed in double and rounded once.
struct Factors {
  float gradient_scale;
  float beta1;
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float decay;          // 1 - learning_rate * weight_decay
  float step_size;      // learning_rate / (1 - beta1^step)
  float second_factor;  // 1 / sqrt(1 - beta2^step)
  float epsilon;
};

Factors MakeFactors(const AdamWParameters& parameters) {
  const double step = static_cast<double>(parameters.step);
  const double correction1 = 1.0 - std::pow(parameters.beta1, step);
  const double correction2 = 1.0 - std::pow(parameters.beta2, step);
  return {.gradient_scale = parameters.gradient_scale,
          .beta1 = static_cast<float>(parameters.beta1),
          .beta2 = static_cast<float>(parameters.beta2),
          .one_minus_beta1 = static_cast<float>(1.0 - parameters.beta1),
          .one_minus_beta2 = static_cast<float>(1.0 - parameters.beta2),
          .decay = static_cast<float>(1.0 - parameters.learning_rate * parameters.weight_decay),
          .step_size = static_cast<float>(parameters.learning_rate / correction1),
          .second_factor = static_cast<float>(1.0 / std::sqrt(correction2)),
          .epsilon = static_cast<float>(parameters.epsilon)};
}

CONVENE_CPU_CLONES void UpdateBlock(int64_t count, const Factors& factors, const float* gradients,
                                    float* weights, float* first_moment, float* second_moment) {
  const Factors f = factors;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] * f.gradient_scale;
    const float first = f.beta1 * first_moment[i] + f.one_minus_beta1 * gradient;
    const float second = f.beta2 * second_moment[i] + f.one_minus_beta2 * (gradient * gradient);
    const float denominator = std::sqrt(second) * f.second_factor + f.epsilon;
    first_moment[i] = first;
    second_moment[i] = second;
    weights[i] = weights[i] * f.decay - f.step_size * (first / denominator);
  }
}

}  // namespace

void AdamW(int64_t count, const AdamWParameters& parameters, const float* gradients, float* weights,
           float* first_moment, float* second_moment, Stream& /*stream*/) {
  const Factors factors = MakeFactors(parameters);
#pragma omp parallel for schedule(static) if (count > kBlock)
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    UpdateBlock(std::min(kBlock, count - begin), factors, gradients + begin, weights + begin,
                first_moment + begin, second_moment + begin);
  }
}

}  // namespace convene::worker
