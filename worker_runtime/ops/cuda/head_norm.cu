// RMSNorm of heads, in place. A warp takes a head.
#include <cstdint>

#include "worker_runtime/ops/cuda/column_sums.cuh"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kHeadsPerBlock = 8;

// This warp's head: where it begins in x and in what is kept.
struct Place {
  int64_t head;  // of all rows' heads; may be past the last
  int64_t x;
  int64_t kept;

  __device__ __forceinline__ Place(const HeadRows& shape, int stride)
      : head(int64_t{blockIdx.x} * kHeadsPerBlock + threadIdx.y),
        x(head / shape.heads * stride + head % shape.heads * shape.size),
        kept(head * shape.size) {}
};

template <typename T>
__global__ void __launch_bounds__(kWarp* kHeadsPerBlock)
    Forward(const HeadRows shape, int stride, const T* weight, float offset, float epsilon, T* x,
            T* kept, float* inverse_rms) {
  const Place place(shape, stride);
  if (place.head >= int64_t{shape.rows} * shape.heads) return;
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarp) {
    const float value = Widen(x + place.x + i);
    sum += value * value;
  }
  const float inverse = 1.0f / sqrtf(WarpSum(sum) / static_cast<float>(shape.size) + epsilon);
  if (threadIdx.x == 0) inverse_rms[place.head] = inverse;
  for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarp) {
    const float value = Widen(x + place.x + i);
    Narrow(value, kept + place.kept + i);
    Narrow(value * inverse * (Widen(weight + i) + offset), x + place.x + i);
  }
}

// dx = inverse_rms * (dy * weight) - projection * x, as in RmsNormBackward.
template <typename T>
__global__ void __launch_bounds__(kWarp* kHeadsPerBlock)
    Backward(const HeadRows shape, int stride, const T* kept, const T* weight, float offset,
             const float* inverse_rms, T* dx) {
  const Place place(shape, stride);
  if (place.head >= int64_t{shape.rows} * shape.heads) return;
  const float inverse = inverse_rms[place.head];
  float dot = 0;
  for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarp) {
    dot += Widen(dx + place.x + i) * (Widen(weight + i) + offset) * Widen(kept + place.kept + i);
  }
  const float projection =
      WarpSum(dot) * inverse * inverse * inverse / static_cast<float>(shape.size);
  for (int i = static_cast<int>(threadIdx.x); i < shape.size; i += kWarp) {
    Narrow(inverse * (Widen(dx + place.x + i) * (Widen(weight + i) + offset)) -
               projection * Widen(kept + place.kept + i),
           dx + place.x + i);
  }
}

// A row of the sum is a head.
template <typename T>
struct WeightTerms {
  static constexpr int kSums = 1;
  HeadRows shape;
  int stride;
  const T* kept;
  const float* inverse_rms;
  const T* dy;

  template <int kWidth>
  __device__ __forceinline__ void Add(int64_t head, int64_t column,
                                      Floats<kWidth> (&sums)[kSums]) const {
    const T* from = dy + head / shape.heads * stride + head % shape.heads * shape.size + column;
    const Floats<kWidth> gradient = Unpack(Load<kWidth>(from));
    const Floats<kWidth> x = Unpack(LoadConstant<kWidth>(kept + head * shape.size + column));
    const float inverse = inverse_rms[head];
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[0][j] += gradient[j] * x[j] * inverse;
  }
};

}  // namespace

template <typename T>
void HeadNormForward(const HeadRows& shape, int stride, const T* weight, float offset,
                     float epsilon, T* x, T* kept, float* inverse_rms, Stream& stream) {
  const int64_t heads = int64_t{shape.rows} * shape.heads;
  Launch(stream, "head_norm_forward", CeilDivide(heads, kHeadsPerBlock),
         dim3(kWarp, kHeadsPerBlock), Forward<T>, shape, stride, weight, offset, epsilon, x, kept,
         inverse_rms);
}

size_t HeadNormWorkspaceBytes(const HeadRows& shape) {
  return ColumnSumBytes(shape.rows * shape.heads, shape.size, WeightTerms<float>::kSums);
}

// The sum comes first: dx takes the place of what it reads.
template <typename T>
void HeadNormBackward(const HeadRows& shape, int stride, const T* kept, const T* weight,
                      float offset, const float* inverse_rms, T* dx, bool adds, float* dweight,
                      const Workspace& workspace, Stream& stream) {
  const char* op = "head_norm_backward";
  const int heads = shape.rows * shape.heads;
  if (heads == 0 || shape.size == 0) return;
  const bool wide = IsWide<T>(shape.size, {kept, dx}) && stride % kWide<T> == 0;
  if (dweight != nullptr) {
    LaunchColumnSums<T>(
        op, heads, shape.size, wide, WeightTerms<T>{shape, stride, kept, inverse_rms, dx},
        workspace.As<float>(HeadNormWorkspaceBytes(shape)), adds, {dweight}, stream);
  }
  Launch(stream, op, CeilDivide(heads, kHeadsPerBlock), dim3(kWarp, kHeadsPerBlock), Backward<T>,
         shape, stride, kept, weight, offset, inverse_rms, dx);
}

CONVENE_INSTANTIATE(HeadNormForward);
CONVENE_INSTANTIATE(HeadNormBackward);

}  // namespace convene::worker::cuda
