// RMSNorm backward, two launches: every block makes dx of its rows and one partial row of dweight;
// then the partial rows are added in order.
#include <cstdint>

#include "worker_runtime/ops/cuda/column_sums.cuh"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

template <typename T>
struct Arguments {
  int rows;
  int columns;
  const T* x;
  const T* weight;
  float offset;
  const float* inverse_rms;
  const T* dy;
  bool add_to_dx;
  T* dx;
  float* partials;  // (gridDim.x, columns)
};

// With r = inverse_rms: dr/dx_j = -r^3 x_j / columns, so dx = r * dy * weight - projection * x.
__device__ float Projection(float dot, float inverse_rms, int columns) {
  return dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(columns);
}

// This thread's vectors of one row: the one at threadIdx.x and every blockDim.x-th after it; zeros
// past the row's end.
template <typename T, int kVectors>
struct RowPart {
  Vector<T, kWide<T>> vectors[kVectors];

  __device__ __forceinline__ void Read(const T* row, int row_vectors) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int i = v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      vectors[v] = {};
      if (i < row_vectors) vectors[v] = Load<kWide<T>>(row + int64_t{i} * kWide<T>);
    }
  }
};

// The weight at this thread's vectors: kept in registers while they are few, else read again from
// the cache.
template <typename T, int kVectors>
struct WeightPart {
  static constexpr bool kKept = kVectors <= 2;
  const T* weight;
  float offset;
  int row_vectors;
  RowPart<T, kKept ? kVectors : 1> kept;

  __device__ __forceinline__ WeightPart(const T* from, float its_offset, int vectors)
      : weight(from), offset(its_offset), row_vectors(vectors) {
    if constexpr (kKept) kept.Read(weight, row_vectors);
  }
  __device__ __forceinline__ Floats<kWide<T>> At(int v) const {
    if constexpr (kKept) {
      return WithOffset(Unpack(kept.vectors[v]));
    } else {
      const int i = v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      if (i >= row_vectors) return {};
      return WithOffset(Unpack(LoadConstant<kWide<T>>(weight + int64_t{i} * kWide<T>)));
    }
  }
  __device__ __forceinline__ Floats<kWide<T>> WithOffset(Floats<kWide<T>> values) const {
#pragma unroll
    for (int j = 0; j < kWide<T>; ++j) values[j] += offset;
    return values;
  }
};

// dot += this thread's part of dy * weight * x; dweight += dy * x * inverse_rms.
template <typename T, int kVectors>
__device__ __forceinline__ float Accumulate(const RowPart<T, kVectors>& x,
                                            const RowPart<T, kVectors>& dy,
                                            const WeightPart<T, kVectors>& weight,
                                            float inverse_rms,
                                            Floats<kWide<T>> (&dweight)[kVectors]) {
  float dot = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const Floats<kWide<T>> x_values = Unpack(x.vectors[v]);
    const Floats<kWide<T>> dy_values = Unpack(dy.vectors[v]);
    const Floats<kWide<T>> weights = weight.At(v);
#pragma unroll
    for (int j = 0; j < kWide<T>; ++j) {
      dot += dy_values[j] * weights[j] * x_values[j];
      dweight[v][j] += dy_values[j] * x_values[j] * inverse_rms;
    }
  }
  return dot;
}

template <typename T, int kVectors>
__device__ __forceinline__ void WriteGradient(const RowPart<T, kVectors>& x,
                                              const RowPart<T, kVectors>& dy,
                                              const WeightPart<T, kVectors>& weight,
                                              const RowPart<T, kVectors>& before, float inverse_rms,
                                              float projection, T* dx, int row_vectors) {
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (i >= row_vectors) continue;
    const Floats<kWide<T>> x_values = Unpack(x.vectors[v]);
    const Floats<kWide<T>> dy_values = Unpack(dy.vectors[v]);
    const Floats<kWide<T>> weights = weight.At(v);
    Floats<kWide<T>> gradient = Unpack(before.vectors[v]);
#pragma unroll
    for (int j = 0; j < kWide<T>; ++j) {
      gradient[j] += inverse_rms * (dy_values[j] * weights[j]) - projection * x_values[j];
    }
    Store(Pack<T>(gradient), dx + int64_t{i} * kWide<T>);
  }
}

// REQUIRES: RmsNormBackwardGeometry's launch (as many blocks as rows at most), 16-byte accesses
// aligned.
template <typename T, int kVectors>
__global__ void __launch_bounds__(kMaxRowThreads, RowsResidentThreads(kVectors) / kMaxRowThreads)
    RowsInRegisters(const Arguments<T> a) {
  constexpr int kWidth = kWide<T>;
  // The next row is on its way while this one is summed, where there are registers for both.
  constexpr bool kPrefetch = kVectors <= 2;
  // Two, taken in turn: the barrier in a row's BlockSum parts the uses of each.
  __shared__ float scratch[2][kWarp];
  const int row_vectors = a.columns / kWidth;
  const WeightPart<T, kVectors> weight(a.weight, a.offset, row_vectors);
  Floats<kWidth> dweight[kVectors] = {};

  RowPart<T, kVectors> x;
  RowPart<T, kVectors> dy;
  int turn = 0;
  const int64_t first_row = blockIdx.x;
  for (int64_t row = first_row; row < a.rows; row += gridDim.x) {
    const int64_t begin = row * a.columns;
    if (!kPrefetch || row == first_row) {
      x.Read(a.x + begin, row_vectors);
      dy.Read(a.dy + begin, row_vectors);
    }
    RowPart<T, kVectors> before = {};
    if (a.add_to_dx) before.Read(a.dx + begin, row_vectors);
    const float inverse_rms = a.inverse_rms[row];
    RowPart<T, kVectors> next_x;
    RowPart<T, kVectors> next_dy;
    if constexpr (kPrefetch) {
      const int64_t next = row + gridDim.x;
      // After the last row there are no vectors, and nothing is read.
      const int next_vectors = next < a.rows ? row_vectors : 0;
      next_x.Read(a.x + next * a.columns, next_vectors);
      next_dy.Read(a.dy + next * a.columns, next_vectors);
    }
    const float dot = BlockSum(Accumulate(x, dy, weight, inverse_rms, dweight), scratch[turn]);
    turn ^= 1;
    WriteGradient(x, dy, weight, before, inverse_rms, Projection(dot, inverse_rms, a.columns),
                  a.dx + begin, row_vectors);
    if constexpr (kPrefetch) {
      x = next_x;
      dy = next_dy;
    }
  }

  float* partial = a.partials + first_row * a.columns;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (i >= row_vectors) continue;
#pragma unroll
    for (int j = 0; j < kWidth; j += kWide<float>) {
      Floats<kWide<float>> part;
#pragma unroll
      for (int k = 0; k < kWide<float>; ++k) part[k] = dweight[v][j + k];
      Store(Pack<float>(part), partial + int64_t{i} * kWidth + j);
    }
  }
}

// Rows of any width and alignment, an element at a time; dweight's partial row stays in memory.
// Each thread has the same columns in every row, and shares them with none.
template <typename T>
__global__ void __launch_bounds__(kMaxRowThreads, RowsResidentThreads(0) / kMaxRowThreads)
    AnyRows(const Arguments<T> a) {
  __shared__ float scratch[2][kWarp];
  const int64_t first_row = blockIdx.x;
  float* partial = a.partials + first_row * a.columns;
  int turn = 0;
  for (int64_t row = first_row; row < a.rows; row += gridDim.x) {
    const T* x = a.x + row * a.columns;
    const T* dy = a.dy + row * a.columns;
    T* dx = a.dx + row * a.columns;
    float dot = 0;
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
      dot += Widen(dy + i) * (Widen(a.weight + i) + a.offset) * Widen(x + i);
    }
    dot = BlockSum(dot, scratch[turn]);
    turn ^= 1;
    const float inverse_rms = a.inverse_rms[row];
    const float projection = Projection(dot, inverse_rms, a.columns);
    for (int64_t i = threadIdx.x; i < a.columns; i += blockDim.x) {
      const float x_value = Widen(x + i);
      const float dy_value = Widen(dy + i);
      const float before = a.add_to_dx ? Widen(dx + i) : 0.0f;
      Narrow(before + (inverse_rms * (dy_value * (Widen(a.weight + i) + a.offset)) -
                       projection * x_value),
             dx + i);
      partial[i] = (row == first_row ? 0.0f : partial[i]) + dy_value * x_value * inverse_rms;
    }
  }
}

}  // namespace

size_t RmsNormWorkspaceBytes(int rows, int columns) {
  return sizeof(float) * static_cast<size_t>(RmsNormPartials(rows)) * static_cast<size_t>(columns);
}

template <typename T>
void RmsNormBackward(int rows, int columns, const T* x, const T* weight, float offset,
                     const float* inverse_rms, const T* dy, bool add_to_dx, T* dx,
                     bool add_to_dweight, float* dweight, const Workspace& workspace,
                     Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const char* op = "rms_norm_backward";
  auto* partials = workspace.As<float>(RmsNormWorkspaceBytes(rows, columns));
  const Arguments<T> a = {rows,        columns, x,         weight, offset,
                          inverse_rms, dy,      add_to_dx, dx,     partials};
  const bool wide = IsWide<T>(columns, {x, weight, dy, dx});
  const RowsGeometry g =
      RmsNormBackwardGeometry(rows, columns, wide ? kWide<T> : 1, stream.queue().multiprocessors());
  switch (g.vectors) {
    case 1:
      Launch(stream, op, g.blocks, dim3(g.threads), RowsInRegisters<T, 1>, a);
      break;
    case 2:
      Launch(stream, op, g.blocks, dim3(g.threads), RowsInRegisters<T, 2>, a);
      break;
    case 4:
      Launch(stream, op, g.blocks, dim3(g.threads), RowsInRegisters<T, 4>, a);
      break;
    default:
      Launch(stream, op, g.blocks, dim3(g.threads), AnyRows<T>, a);
      break;
  }
  if (dweight == nullptr) return;
  LaunchAddPartials(op, g.blocks, columns, partials, add_to_dweight, dweight, stream);
}

CONVENE_INSTANTIATE(RmsNormBackward);

}  // namespace convene::worker::cuda
