// LayerNorm. Forward: a row is read once, kept in registers as it lay in memory, and written once.
// Backward: a launch makes dx by rows, two more the sums over rows.
#include <cstdint>

#include "worker_runtime/ops/cuda/column_sums.cuh"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

enum class Row {
  kInput,           // x
  kSum,             // x + delta, which is also stored
  kKnownStatistics  // x, whose statistics the forward pass kept
};

template <typename T>
struct Arguments {
  int rows;
  int columns;
  const T* x;
  const T* delta;
  const T* weight;
  const T* bias;
  float epsilon;
  T* sum;
  T* y;
  float* statistics;
};

// The same operations in the same order for every path: LayerNormAgain gives the same bits.
__device__ __forceinline__ float Normalize(float x, float mean, float inverse, float weight,
                                           float bias) {
  return (x - mean) * inverse * weight + bias;
}

__device__ __forceinline__ float SumOfRow(float value, float (&scratch)[kWarp]) {
  // blockDim is the same for all: either all wait at the barrier, or none.
  return blockDim.x == kWarp ? WarpSum(value) : BlockSum(value, scratch);
}

// blockDim.x threads take a row. REQUIRES: RmsNormGeometry's launch, 16-byte accesses aligned.
template <typename T, int kVectors, Row kRow>
__global__ void __launch_bounds__(kMaxRowThreads) RowInRegisters(const Arguments<T> a) {
  constexpr int kWidth = kWide<T>;
  __shared__ float scratch[2][kWarp];
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
    if (i >= vectors) continue;
    kept[v] = Load<kWidth>(a.x + begin + int64_t{i} * kWidth);
    if constexpr (kRow == Row::kSum) {
      Floats<kWidth> sum = Unpack(kept[v]);
      const Floats<kWidth> other = Unpack(Load<kWidth>(a.delta + begin + int64_t{i} * kWidth));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum[j] += other[j];
      kept[v] = Pack<T>(sum);
      Store(kept[v], a.sum + begin + int64_t{i} * kWidth);
    }
  }

  float* const statistics = a.statistics + int64_t{row} * kLayerNormStatistics;
  float mean;
  float inverse;
  if constexpr (kRow == Row::kKnownStatistics) {
    mean = statistics[0];
    inverse = statistics[1];
  } else {
    float sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const Floats<kWidth> x = Unpack(kept[v]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sum += x[j];
    }
    mean = SumOfRow(sum, scratch[0]) / static_cast<float>(a.columns);
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v * step + static_cast<int>(threadIdx.x) >= vectors) continue;
      const Floats<kWidth> x = Unpack(kept[v]);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) squares += (x[j] - mean) * (x[j] - mean);
    }
    inverse =
        1.0f / sqrtf(SumOfRow(squares, scratch[1]) / static_cast<float>(a.columns) + a.epsilon);
    if (threadIdx.x == 0) {
      statistics[0] = mean;
      statistics[1] = inverse;
    }
  }

#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = v * step + static_cast<int>(threadIdx.x);
    if (i >= vectors) continue;
    Floats<kWidth> y = Unpack(kept[v]);
    const Floats<kWidth> weight = Unpack(LoadConstant<kWidth>(a.weight + int64_t{i} * kWidth));
    const Floats<kWidth> bias = Unpack(LoadConstant<kWidth>(a.bias + int64_t{i} * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) y[j] = Normalize(y[j], mean, inverse, weight[j], bias[j]);
    Store(Pack<T>(y), a.y + begin + int64_t{i} * kWidth);
  }
}

// A block takes a row of any width and alignment, an element at a time. Each thread reads again
// only what it wrote itself.
template <typename T, Row kRow>
__global__ void __launch_bounds__(kMaxRowThreads) AnyRow(const Arguments<T> a) {
  __shared__ float scratch[2][kWarp];
  const int64_t begin = int64_t{blockIdx.x} * a.columns;
  const T* x = (kRow == Row::kSum ? a.sum : a.x) + begin;
  float* const statistics = a.statistics + int64_t{blockIdx.x} * kLayerNormStatistics;
  float mean;
  float inverse;
  if constexpr (kRow == Row::kKnownStatistics) {
    mean = statistics[0];
    inverse = statistics[1];
  } else {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
      if constexpr (kRow == Row::kSum) {
        Narrow(Widen(a.x + begin + i) + Widen(a.delta + begin + i), a.sum + begin + i);
      }
      sum += Widen(x + i);
    }
    mean = BlockSum(sum, scratch[0]) / static_cast<float>(a.columns);
    float squares = 0;
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
      const float centred = Widen(x + i) - mean;
      squares += centred * centred;
    }
    inverse =
        1.0f / sqrtf(BlockSum(squares, scratch[1]) / static_cast<float>(a.columns) + a.epsilon);
    if (threadIdx.x == 0) {
      statistics[0] = mean;
      statistics[1] = inverse;
    }
  }
  for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
    Narrow(Normalize(Widen(x + i), mean, inverse, Widen(a.weight + i), Widen(a.bias + i)),
           a.y + begin + i);
  }
}

template <Row kRow, typename T>
void Forward(const char* op, const Arguments<T>& a, Stream& stream) {
  if (a.rows == 0 || a.columns == 0) return;
  // An array that the op does not have is null: aligned. Only kSum uses its `sum`.
  const T* const sum = kRow == Row::kSum ? a.sum : nullptr;
  const bool wide = IsWide<T>(a.columns, {a.x, a.delta, a.weight, a.bias, sum, a.y});
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

template <typename T>
struct BackwardArguments {
  int rows;
  int columns;
  const T* x;
  const T* weight;
  const float* statistics;
  const T* dy;
  bool add_to_dx;
  T* dx;
};

// With g = dy weight and n = (x - mean) inverse: dx = inverse (g - mean(g) - n mean(g n)). A block
// takes a row, kWidth elements at a time, and reads it a second time from the cache.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kMaxRowThreads) InputGradient(const BackwardArguments<T> a) {
  __shared__ float scratch[2][kWarp];
  const int64_t begin = int64_t{blockIdx.x} * a.columns;
  const float mean = a.statistics[int64_t{blockIdx.x} * kLayerNormStatistics];
  const float inverse = a.statistics[int64_t{blockIdx.x} * kLayerNormStatistics + 1];
  const int vectors = a.columns / kWidth;
  float sum = 0;
  float dot = 0;
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
    const int64_t at = int64_t{i} * kWidth;
    const Floats<kWidth> x = Unpack(Load<kWidth>(a.x + begin + at));
    const Floats<kWidth> dy = Unpack(Load<kWidth>(a.dy + begin + at));
    const Floats<kWidth> weight = Unpack(LoadConstant<kWidth>(a.weight + at));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float g = dy[j] * weight[j];
      sum += g;
      dot += g * (x[j] - mean);
    }
  }
  const float g_mean = BlockSum(sum, scratch[0]) / static_cast<float>(a.columns);
  const float projection =
      BlockSum(dot, scratch[1]) * inverse * inverse / static_cast<float>(a.columns);
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += static_cast<int>(blockDim.x)) {
    const int64_t at = int64_t{i} * kWidth;
    const Floats<kWidth> x = Unpack(Load<kWidth>(a.x + begin + at));
    const Floats<kWidth> dy = Unpack(Load<kWidth>(a.dy + begin + at));
    const Floats<kWidth> weight = Unpack(LoadConstant<kWidth>(a.weight + at));
    Floats<kWidth> gradient = {};
    if (a.add_to_dx) gradient = Unpack(Load<kWidth>(a.dx + begin + at));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      gradient[j] += inverse * (dy[j] * weight[j] - g_mean - projection * (x[j] - mean));
    }
    Store(Pack<T>(gradient), a.dx + begin + at);
  }
}

// Of the weight and of the bias.
template <typename T>
struct WeightTerms {
  static constexpr int kSums = 2;
  int columns;
  const T* x;
  const T* dy;
  const float* statistics;

  template <int kWidth>
  __device__ __forceinline__ void Add(int64_t row, int64_t column,
                                      Floats<kWidth> (&sums)[kSums]) const {
    const float mean = statistics[row * kLayerNormStatistics];
    const float inverse = statistics[row * kLayerNormStatistics + 1];
    const Floats<kWidth> x_values = Unpack(LoadConstant<kWidth>(x + row * columns + column));
    const Floats<kWidth> gradient = Unpack(LoadConstant<kWidth>(dy + row * columns + column));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      sums[0][j] += gradient[j] * (x_values[j] - mean) * inverse;
      sums[1][j] += gradient[j];
    }
  }
};

}  // namespace

template <typename T>
void LayerNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                      const T* bias, float epsilon, T* sum, T* y, float* statistics,
                      Stream& stream) {
  const Arguments<T> a = {rows, columns, x, delta, weight, bias, epsilon, sum, y, statistics};
  const auto forward = delta == nullptr ? Forward<Row::kInput, T> : Forward<Row::kSum, T>;
  forward("layer_norm_forward", a, stream);
}

template <typename T>
void LayerNormAgain(int rows, int columns, const T* x, const T* weight, const T* bias,
                    const float* statistics, T* y, Stream& stream) {
  // Row::kKnownStatistics only reads the statistics.
  Forward<Row::kKnownStatistics>("layer_norm_again",
                                 Arguments<T>{rows, columns, x, nullptr, weight, bias, 0.0f,
                                              nullptr, y, const_cast<float*>(statistics)},
                                 stream);
}

size_t LayerNormWorkspaceBytes(int rows, int columns) {
  return ColumnSumBytes(rows, columns, WeightTerms<float>::kSums);
}

template <typename T>
void LayerNormBackward(int rows, int columns, const T* x, const T* weight, const float* statistics,
                       const T* dy, bool add_to_dx, T* dx, bool adds, float* dweight, float* dbias,
                       const Workspace& workspace, Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const char* op = "layer_norm_backward";
  const bool wide = IsWide<T>(columns, {x, weight, dy, dx});
  if (dweight != nullptr) {
    LaunchColumnSums<T>(op, rows, columns, wide, WeightTerms<T>{columns, x, dy, statistics},
                        workspace.As<float>(LayerNormWorkspaceBytes(rows, columns)), adds,
                        {dweight, dbias}, stream);
  }
  const BackwardArguments<T> a = {rows, columns, x, weight, statistics, dy, add_to_dx, dx};
  Launch(stream, op, rows, dim3(AnyRowThreads(wide ? columns / kWide<T> : columns)),
         wide ? InputGradient<T, kWide<T>> : InputGradient<T, 1>, a);
}

CONVENE_INSTANTIATE(LayerNormForward);
CONVENE_INSTANTIATE(LayerNormAgain);
CONVENE_INSTANTIATE(LayerNormBackward);

}  // namespace convene::worker::cuda
