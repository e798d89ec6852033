// Momentum and descent over the flat shard.
#include <cstdint>
#include <type_traits>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 1;
constexpr int kWidth = kWide<float>;

__device__ __forceinline__ float DecayOf(const uint8_t* flags, int64_t vector, float decay) {
  return (__ldg(flags + vector / (kFlagBlock / kWidth)) & kDecayed) != 0 ? decay : 0.0f;
}

__global__ void __launch_bounds__(kFlatThreads)
    Add(int64_t count, const MomentumFactors* factors, const StepControl* control,
        const uint8_t* flags, const float* master, float* gradients, float* momentum) {
  const int64_t i = FlatVectorAt(0, kUnroll);
  if (control->skip != SkipReason::kNone || i >= count / kWidth) return;
  const MomentumFactors f = *factors;
  const float decay = DecayOf(flags, i, f.decay);
  const Floats<kWidth> weight = Unpack(LoadConstant<kWidth>(master + i * kWidth));
  Floats<kWidth> direction = Unpack(Load<kWidth>(gradients + i * kWidth));
  Floats<kWidth> sum = {};
  if (momentum != nullptr) sum = Unpack(Load<kWidth>(momentum + i * kWidth));
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float gradient = direction[j] * control->gradient_scale + decay * weight[j];
    sum[j] = f.momentum * sum[j] + gradient;
    direction[j] = f.nesterov != 0 ? gradient + f.momentum * sum[j] : sum[j];
  }
  if (momentum != nullptr) Store(Pack<float>(sum), momentum + i * kWidth);
  Store(Pack<float>(direction), gradients + i * kWidth);
}

template <typename T>
__global__ void __launch_bounds__(kFlatThreads)
    Step(int64_t count, const DescentFactors* factors, const StepControl* control,
         const uint8_t* flags, const float* direction, float* master, T* weights) {
  const int64_t i = FlatVectorAt(0, kUnroll);
  if (control->skip != SkipReason::kNone || i >= count / kWidth) return;
  const DescentFactors f = *factors;
  const float decay = DecayOf(flags, i, f.decay);
  const Floats<kWidth> step = Unpack(LoadConstant<kWidth>(direction + i * kWidth));
  Floats<kWidth> weight = Unpack(Load<kWidth>(master + i * kWidth));
#pragma unroll
  for (int j = 0; j < kWidth; ++j) weight[j] -= f.step_size * (step[j] + decay * weight[j]);
  Store(Pack<float>(weight), master + i * kWidth);
  // For T = float master and weights are one array.
  if constexpr (!std::is_same_v<T, float>) Store(Pack<T>(weight), weights + i * kWidth);
}

}  // namespace

void Momentum(int64_t count, const MomentumFactors* factors, const StepControl* control,
              const uint8_t* flags, const float* master, float* gradients, float* momentum,
              Stream& stream) {
  Launch(stream, "momentum", FlatBlocks(count, kWidth, kUnroll), dim3(kFlatThreads), Add, count,
         factors, control, flags, master, gradients, momentum);
}

template <typename T>
void Descend(int64_t count, const DescentFactors* factors, const StepControl* control,
             const uint8_t* flags, const float* direction, float* master, T* weights,
             Stream& stream) {
  Launch(stream, "descend", FlatBlocks(count, kWidth, kUnroll), dim3(kFlatThreads), Step<T>, count,
         factors, control, flags, direction, master, weights);
}

CONVENE_INSTANTIATE(Descend);

}  // namespace convene::worker::cuda
