// Muon's sums and scales of whole matrices.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 1;
constexpr int kWidth = kWide<float>;

// A vector a thread, and of the last ones the elements that are there.
template <typename Element, typename Vectors>
__device__ __forceinline__ void ForVector(int64_t count, const Vectors& vector,
                                          const Element& element) {
  const int64_t begin = FlatVectorAt(0, kUnroll) * kWidth;
  if (begin + kWidth <= count) return vector(begin);
  for (int64_t i = begin; i < count; ++i) element(i);
}

template <typename T>
__global__ void __launch_bounds__(kFlatThreads)
    Scale(int64_t count, const float* x, const double* sum_of_squares, T* y) {
  const auto scale = static_cast<float>(1 / fmax(sqrt(*sum_of_squares), 1e-7));
  ForVector(
      count,
      [&](int64_t i) {
        Floats<kWidth> values = Unpack(LoadConstant<kWidth>(x + i));
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values[j] *= scale;
        Store(Pack<T>(values), y + i);
      },
      [&](int64_t i) { Narrow(x[i] * scale, y + i); });
}

template <typename T>
__global__ void __launch_bounds__(kFlatThreads)
    Sum(int64_t count, float a, float b, const float* y, T* x) {
  ForVector(
      count,
      [&](int64_t i) {
        const Floats<kWidth> other = Unpack(LoadConstant<kWidth>(y + i));
        Floats<kWidth> values = Unpack(Load<kWidth>(x + i));
#pragma unroll
        for (int j = 0; j < kWidth; ++j) values[j] = a * values[j] + b * other[j];
        Store(Pack<T>(values), x + i);
      },
      [&](int64_t i) { Narrow(a * Widen(x + i) + b * y[i], x + i); });
}

int64_t Blocks(int64_t count) { return FlatBlocks(count + kWidth - 1, kWidth, kUnroll); }

}  // namespace

template <typename T>
void ScaleToUnit(int64_t count, const float* x, const double* sum_of_squares, T* y,
                 Stream& stream) {
  Launch(stream, "scale_to_unit", Blocks(count), dim3(kFlatThreads), Scale<T>, count, x,
         sum_of_squares, y);
}
CONVENE_INSTANTIATE(ScaleToUnit);

template <typename T>
void Combine(int64_t count, float a, float b, const float* y, T* x, Stream& stream) {
  Launch(stream, "combine", Blocks(count), dim3(kFlatThreads), Sum<T>, count, a, b, y, x);
}
CONVENE_INSTANTIATE(Combine);

}  // namespace convene::worker::cuda
