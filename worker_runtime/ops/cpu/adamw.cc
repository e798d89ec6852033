#include "worker_runtime/ops/adamw.h"

#include <cmath>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/flag_runs.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 0.35;  // an element

template <typename T>
CONVENE_CPU_CLONES void Update(int64_t count, const AdamWFactors& factors, float gradient_scale,
                               float decay, const float* gradients, float* master, T* weights,
                               float* first_moment, float* second_moment) {
  const AdamWFactors f = factors;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] * gradient_scale;
    const float first = f.beta1 * first_moment[i] + f.one_minus_beta1 * gradient;
    const float second = f.beta2 * second_moment[i] + f.one_minus_beta2 * (gradient * gradient);
    const float denominator = std::sqrt(second) * f.second_factor + f.epsilon;
    first_moment[i] = first;
    second_moment[i] = second;
    const float weight = master[i] * decay - f.step_size * (first / denominator);
    master[i] = weight;
    // For fp32 it is the same memory: a store less.
    if constexpr (sizeof(T) < sizeof(float)) Narrow(weight, &weights[i]);
  }
}

}  // namespace

void DecideStep(const double* sum_of_squares, const double* loss, double max_norm,
                const StepLimits& limits, StepControl* control, Stream& /*stream*/) {
  *control = ControlStep(std::sqrt(*sum_of_squares), *loss, max_norm, limits);
}

template <typename T>
void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
           const uint8_t* flags, const float* gradients, float* master, T* weights,
           float* first_moment, float* second_moment, Stream& /*stream*/) {
  if (control->skip != SkipReason::kNone) return;
  ForFlagRuns(kNanoseconds, count, flags, [=](int64_t first, int64_t length, bool is_decayed) {
    Update(length, *factors, control->gradient_scale, is_decayed ? factors->decay : 1.0f,
           gradients + first, master + first, weights + first, first_moment + first,
           second_moment + first);
  });
}

CONVENE_INSTANTIATE(AdamW);

}  // namespace convene::worker::cpu
