// RMSNorm forward. The row is read once, kept in registers as it lay in memory, and written once.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

enum class Row {
  kInput,    // x
  kSum,      // x + delta, which is also stored
  kKnownRms  // x, whose inverse_rms the forward pass kept
};

template <typename T>
struct Arguments {
  int rows;
  int columns;
  const T* x;
  const T* delta;
  const T* weight;
  float offset;
  float epsilon;
  T* sum;
  T* y;
  float* inverse_rms;
};

__device__ float InverseRms(float sum_of_squares, int columns, float epsilon) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(columns) + epsilon);
}

// The same operations in the same order for every path: RmsNormAgain gives the same bits.
__device__ __forceinline__ float Normalize(float x, float inverse_rms, float weight, float offset) {
  return x * inverse_rms * (weight + offset);
}

// blockDim.x threads take a row. REQUIRES: RmsNormGeometry's launch, 16-byte accesses aligned.
template <typename T, int kVectors, Row kRow>
__global__ void __launch_bounds__(kMaxRowThreads) RowInRegisters(const Arguments<T> a) {
  constexpr int kWidth = kWide<T>;
  __shared__ float scratch[kWarp];
  const int row = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  // This happens only where a warp has a row of its own: no other thread waits for it.
  if (row >= a.rows) return;
  const int vectors = a.columns / kWidth;
  const int step = static_cast<int>(blockDim.x);
  const int64_t begin = int64_t{row} * a.columns;

  Vector<T, kWidth> kept[kVectors] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = v * step + static_cast<int>(threadIdx.x);
    if (i < vectors) kept[v] = Load<kWidth>(a.x + begin + int64_t{i} * kWidth);
  }
  if constexpr (kRow == Row::kSum) {
    Vector<T, kWidth> delta[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * step + static_cast<int>(threadIdx.x);
      if (i < vectors) delta[v] = Load<kWidth>(a.delta + begin + int64_t{i} * kWidth);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * step + static_cast<int>(threadIdx.x);
      Floats<kWidth> sum = Unpack(kept[v]);
      const Floats<kWidth> other = Unpack(delta[v]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += other[j];
      kept[v] = Pack<T>(sum);
      if (i < vectors) Store(kept[v], a.sum + begin + int64_t{i} * kWidth);
    }
  }

  float inverse_rms;
  if constexpr (kRow == Row::kKnownRms) {
    inverse_rms = a.inverse_rms[row];
  } else {
    float sum_of_squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Floats<kWidth> x = Unpack(kept[v]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum_of_squares += x[j] * x[j];
    }
    // blockDim is the same for all: either all wait at the barrier, or none.
    sum_of_squares = step == kWarp ? WarpSum(sum_of_squares) : BlockSum(sum_of_squares, scratch);
    inverse_rms = InverseRms(sum_of_squares, a.columns, a.epsilon);
    if (threadIdx.x == 0) a.inverse_rms[row] = inverse_rms;
  }

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = v * step + static_cast<int>(threadIdx.x);
    if (i >= vectors) continue;
    Floats<kWidth> y = Unpack(kept[v]);
    const Floats<kWidth> weight = Unpack(LoadConstant<kWidth>(a.weight + int64_t{i} * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = Normalize(y[j], inverse_rms, weight[j], a.offset);
    Store(Pack<T>(y), a.y + begin + int64_t{i} * kWidth);
  }
}

// A block takes a row of any width and alignment, an element at a time. Each thread reads again
// only what it wrote itself.
template <typename T, Row kRow>
__global__ void __launch_bounds__(kMaxRowThreads) AnyRow(const Arguments<T> a) {
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  const int64_t begin = row * a.columns;
  const T* x = (kRow == Row::kSum ? a.sum : a.x) + begin;
  float inverse_rms;
  if constexpr (kRow == Row::kKnownRms) {
    inverse_rms = a.inverse_rms[row];
  } else {
    float sum_of_squares = 0;
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
      if constexpr (kRow == Row::kSum) {
        Narrow(Widen(a.x + begin + i) + Widen(a.delta + begin + i), a.sum + begin + i);
      }
      const float value = Widen(x + i);
      sum_of_squares += value * value;
    }
    inverse_rms = InverseRms(BlockSum(sum_of_squares, scratch), a.columns, a.epsilon);
    if (threadIdx.x == 0) a.inverse_rms[row] = inverse_rms;
  }
  for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
    Narrow(Normalize(Widen(x + i), inverse_rms, Widen(a.weight + i), a.offset), a.y + begin + i);
  }
}

template <Row kRow, typename T>
void Forward(const char* op, const Arguments<T>& a, Stream& stream) {
  if (a.rows == 0 || a.columns == 0) return;
  // An array that the op does not have is null: aligned. Only kSum uses its `sum`.
  const T* const sum = kRow == Row::kSum ? a.sum : nullptr;
  const bool wide = IsWide<T>(a.columns, {a.x, a.delta, a.weight, sum, a.y});
  const RowGeometry g = RmsNormGeometry(a.rows, a.columns, wide ? kWide<T> : 1);
  const dim3 threads(g.threads, g.rows_per_block);
  switch (g.vectors) {
    case 1:
      return Launch(stream, op, g.blocks, threads, RowInRegisters<T, 1, kRow>, a);
    case 2:
      return Launch(stream, op, g.blocks, threads, RowInRegisters<T, 2, kRow>, a);
    case 4:
      return Launch(stream, op, g.blocks, threads, RowInRegisters<T, 4, kRow>, a);
    case 8:
      return Launch(stream, op, g.blocks, threads, RowInRegisters<T, 8, kRow>, a);
    default:
      return Launch(stream, op, g.blocks, threads, AnyRow<T, kRow>, a);
  }
}

}  // namespace

template <typename T>
void RmsNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                    float offset, float epsilon, T* sum, T* y, float* inverse_rms, Stream& stream) {
  const Arguments<T> a = {rows, columns, x, delta, weight, offset, epsilon, sum, y, inverse_rms};
  const auto forward = delta == nullptr ? Forward<Row::kInput, T> : Forward<Row::kSum, T>;
  forward("rms_norm_forward", a, stream);
}

template <typename T>
void RmsNormAgain(int rows, int columns, const T* x, const T* weight, float offset,
                  const float* inverse_rms, T* y, Stream& stream) {
  // Row::kKnownRms only reads inverse_rms.
  Forward<Row::kKnownRms>("rms_norm_again",
                          Arguments<T>{rows, columns, x, nullptr, weight, offset, 0.0f, nullptr, y,
                                       const_cast<float*>(inverse_rms)},
                          stream);
}

CONVENE_INSTANTIATE(RmsNormForward);
CONVENE_INSTANTIATE(RmsNormAgain);

}  // namespace convene::worker::cuda
