#include "worker_runtime/ops/adamw.h"

#include <algorithm>
#include <cmath>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr int64_t kBlocksPerTask = 128;  // 8192 elements
constexpr double kNanoseconds = 0.35;    // an element

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

void DecideStep(const double* sum_of_squares, double max_norm, StepControl* control,
                Stream& /*stream*/) {
  *control = ControlStep(std::sqrt(*sum_of_squares), max_norm);
}

template <typename T>
void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
           const uint8_t* flags, const float* gradients, float* master, T* weights,
           float* first_moment, float* second_moment, Stream& /*stream*/) {
  if (control->skip != 0) return;
  const int64_t blocks = count / kFlagBlock;
  const int64_t tasks = CeilDivide(blocks, kBlocksPerTask);
  ForPieces(kNanoseconds * static_cast<double>(count), tasks, [=](int64_t task) {
    const int64_t task_begin = task * kBlocksPerTask;
    const int64_t task_end = std::min(blocks, task_begin + kBlocksPerTask);
    // Runs of blocks with one flag: nearly always the whole task.
    for (int64_t begin = task_begin; begin < task_end;) {
      const uint8_t decayed = flags[begin] & kDecayed;
      int64_t end = begin + 1;
      while (end < task_end && (flags[end] & kDecayed) == decayed) ++end;
      const int64_t first = begin * kFlagBlock;
      Update((end - begin) * kFlagBlock, *factors, control->gradient_scale,
             decayed != 0 ? factors->decay : 1.0f, gradients + first, master + first,
             weights + first, first_moment + first, second_moment + first);
      begin = end;
    }
  });
}

CONVENE_INSTANTIATE(AdamW);

}  // namespace convene::worker::cpu
