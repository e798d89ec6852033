// A router's bias. A thread takes an expert.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"

namespace convene::worker::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    Imbalance(int sequences, const RouterShape shape, const float* statistics, bool adds,
              float* imbalance) {
  const int expert = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (expert >= shape.experts) return;
  const int64_t width = RouterStatisticsWidth(shape.experts);
  float choices = 0;
  float count = 0;
  for (int64_t sequence = 0; sequence < sequences; ++sequence) {
    for (int i = 0; i < shape.experts; ++i) choices += __ldg(statistics + sequence * width + i);
    count += __ldg(statistics + sequence * width + expert);
  }
  imbalance[expert] =
      (adds ? imbalance[expert] : 0.0f) + static_cast<float>(shape.experts) * count - choices;
}

__global__ void __launch_bounds__(kThreads)
    BiasStep(int64_t count, float rate, const StepControl* control, float* imbalance, float* bias) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  if (control->skip == SkipReason::kNone && imbalance[i] != 0)
    bias[i] -= copysignf(rate, imbalance[i]);
  imbalance[i] = 0;
}

}  // namespace

void RouterImbalance(int sequences, const RouterShape& shape, const float* statistics, bool adds,
                     float* imbalance, Stream& stream) {
  Launch(stream, "router_imbalance", CeilDivide(shape.experts, kThreads), dim3(kThreads), Imbalance,
         sequences, shape, statistics, adds, imbalance);
}

void RouterBiasStep(int64_t count, float rate, const StepControl* control, float* imbalance,
                    float* bias, Stream& stream) {
  Launch(stream, "router_bias_step", CeilDivide(count, kThreads), dim3(kThreads), BiasStep, count,
         rate, control, imbalance, bias);
}

}  // namespace convene::worker::cuda
