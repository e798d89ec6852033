#include "worker_runtime/ops/sgd.h"

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/flag_runs.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kNanoseconds = 0.2;  // an element

template <bool kKeepsMomentum>
CONVENE_CPU_CLONES void Add(int64_t count, float mass, float nesterov, float gradient_scale,
                            float decay, const float* master, float* gradients, float* momentum) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = gradients[i] * gradient_scale + decay * master[i];
    if constexpr (!kKeepsMomentum) {
      gradients[i] = gradient;
      continue;
    }
    const float sum = mass * momentum[i] + gradient;
    momentum[i] = sum;
    gradients[i] = nesterov != 0 ? gradient + mass * sum : sum;
  }
}

template <typename T>
CONVENE_CPU_CLONES void Step(int64_t count, float step_size, float decay, const float* direction,
                             float* master, T* weights) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float weight = master[i] - step_size * (direction[i] + decay * master[i]);
    master[i] = weight;
    // For fp32 it is the same memory: a store less.
    if constexpr (sizeof(T) < sizeof(float)) Narrow(weight, &weights[i]);
  }
}

}  // namespace

void Momentum(int64_t count, const MomentumFactors* factors, const StepControl* control,
              const uint8_t* flags, const float* master, float* gradients, float* momentum,
              Stream& /*stream*/) {
  if (control->skip != SkipReason::kNone) return;
  const bool keeps = momentum != nullptr;
  ForFlagRuns(kNanoseconds, count, flags, [=](int64_t first, int64_t length, bool is_decayed) {
    (keeps ? Add<true> : Add<false>)(length, factors->momentum,
                                     static_cast<float>(factors->nesterov), control->gradient_scale,
                                     is_decayed ? factors->decay : 0, master + first,
                                     gradients + first, keeps ? momentum + first : nullptr);
  });
}

template <typename T>
void Descend(int64_t count, const DescentFactors* factors, const StepControl* control,
             const uint8_t* flags, const float* direction, float* master, T* weights,
             Stream& /*stream*/) {
  if (control->skip != SkipReason::kNone) return;
  ForFlagRuns(kNanoseconds, count, flags, [=](int64_t first, int64_t length, bool is_decayed) {
    Step(length, factors->step_size, is_decayed ? factors->decay : 0, direction + first,
         master + first, weights + first);
  });
}

CONVENE_INSTANTIATE(Descend);

}  // namespace convene::worker::cpu
