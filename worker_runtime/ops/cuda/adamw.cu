// The optimizer's step over the flat shard: everything an element needs in one pass.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 2;
// 16 bytes of each float array; the bfloat16 weights then take 8, which a warp still writes as one
// whole piece.
constexpr int kWidth = kWide<float>;

__global__ void Decide(const double* sum_of_squares, const double* loss, double max_norm,
                       StepLimits limits, StepControl* control) {
  *control = ControlStep(sqrt(*sum_of_squares), *loss, max_norm, limits);
}

template <typename T>
struct Arguments {
  int64_t count;
  const AdamWFactors* factors;
  const StepControl* control;
  const uint8_t* flags;
  const float* gradients;
  float* master;
  T* weights;
  float* first_moment;
  float* second_moment;
};

__device__ __forceinline__ void Update(const AdamWFactors& f, float gradient_scale, float decay,
                                       float gradient, float& master, float& first_moment,
                                       float& second_moment) {
  gradient *= gradient_scale;
  const float first = f.beta1 * first_moment + f.one_minus_beta1 * gradient;
  const float second = f.beta2 * second_moment + f.one_minus_beta2 * (gradient * gradient);
  const float denominator = sqrtf(second) * f.second_factor + f.epsilon;
  first_moment = first;
  second_moment = second;
  master = master * decay - f.step_size * (first / denominator);
}

// One block's share of the vectors, from the first one on.
template <typename T, int kThreads>
__device__ __forceinline__ void UpdateVectors(const Arguments<T>& a, int64_t first) {
  const AdamWFactors f = *a.factors;
  const float gradient_scale = a.control->gradient_scale;
  const int64_t vectors = a.count / kWidth;
  Vector<float, kWidth> gradients[kUnroll];
  Vector<float, kWidth> masters[kUnroll];
  Vector<float, kWidth> firsts[kUnroll];
  Vector<float, kWidth> seconds[kUnroll];
  uint8_t flags[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kThreads + threadIdx.x;
    if (i >= vectors) break;
    gradients[u] = LoadConstant<kWidth>(a.gradients + i * kWidth);
    masters[u] = Load<kWidth>(a.master + i * kWidth);
    firsts[u] = Load<kWidth>(a.first_moment + i * kWidth);
    seconds[u] = Load<kWidth>(a.second_moment + i * kWidth);
    flags[u] = __ldg(a.flags + i / (kFlagBlock / kWidth));
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = first + u * kThreads + threadIdx.x;
    if (i >= vectors) break;
    const Floats<kWidth> gradient = Unpack(gradients[u]);
    Floats<kWidth> master = Unpack(masters[u]);
    Floats<kWidth> first_moment = Unpack(firsts[u]);
    Floats<kWidth> second_moment = Unpack(seconds[u]);
    const float decay = (flags[u] & kDecayed) != 0 ? f.decay : 1.0f;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      Update(f, gradient_scale, decay, gradient[j], master[j], first_moment[j], second_moment[j]);
    }
    Store(Pack<float>(first_moment), a.first_moment + i * kWidth);
    Store(Pack<float>(second_moment), a.second_moment + i * kWidth);
    Store(Pack<float>(master), a.master + i * kWidth);
    // For T = float master and weights are one array.
    if constexpr (!std::is_same_v<T, float>) Store(Pack<T>(master), a.weights + i * kWidth);
  }
}

template <typename T>
__global__ void __launch_bounds__(kFlatThreads) Step(const Arguments<T> a) {
  if (a.control->skip != SkipReason::kNone) return;
  UpdateVectors<T, kFlatThreads>(a, int64_t{blockIdx.x} * kUnroll * kFlatThreads);
}

// Of an update that leaves multiprocessors to others. A block is large enough to have one
// multiprocessor's share of memory in flight, and goes on through the array: small blocks would
// stand on every multiprocessor, where products' blocks then find no room. More threads would have
// too few registers.
constexpr int kThreadsBeside = 512;
template <typename T>
__global__ void __launch_bounds__(kThreadsBeside) StepBeside(const Arguments<T> a) {
  if (a.control->skip != SkipReason::kNone) return;
  constexpr int64_t kShare = int64_t{kUnroll} * kThreadsBeside;
  for (int64_t first = blockIdx.x * kShare; first < a.count / kWidth; first += gridDim.x * kShare) {
    UpdateVectors<T, kThreadsBeside>(a, first);
  }
}

}  // namespace

void DecideStep(const double* sum_of_squares, const double* loss, double max_norm,
                const StepLimits& limits, StepControl* control, Stream& stream) {
  Launch(stream, "decide_step", 1, dim3(1), Decide, sum_of_squares, loss, max_norm, limits,
         control);
}

template <typename T>
void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
           const uint8_t* flags, const float* gradients, float* master, T* weights,
           float* first_moment, float* second_moment, Stream& stream) {
  const Arguments<T> a = {count,  factors, control,      flags,        gradients,
                          master, weights, first_moment, second_moment};
  if (stream.left_free() == 0) {
    Launch(stream, "adamw", FlatBlocks(count, kWidth, kUnroll), dim3(kFlatThreads), Step<T>, a);
    return;
  }
  const int64_t most = std::max(stream.queue().multiprocessors() - stream.left_free(), 1);
  const int64_t shares = CeilDivide(count, int64_t{kWidth} * kUnroll * kThreadsBeside);
  Launch(stream, "adamw", std::min(shares, most), dim3(kThreadsBeside), StepBeside<T>, a);
}

CONVENE_INSTANTIATE(AdamW);

}  // namespace convene::worker::cuda
