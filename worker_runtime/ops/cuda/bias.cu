// Biases: added to rows, and summed over rows.
#include <cstdint>

#include "worker_runtime/ops/cuda/column_sums.cuh"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kUnroll = 4;

template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Add(int rows, int columns, int chunks, const T* bias, T* y) {
  const Tile tile(chunks, kUnroll);
  if (tile.row >= rows) return;
  const int vectors = columns / kWidth;
  T* y_row = y + tile.row * columns;
  Vector<T, kWidth> values[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i < vectors) values[u] = Load<kWidth>(y_row + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    Floats<kWidth> sum = Unpack(values[u]);
    const Floats<kWidth> added = Unpack(LoadConstant<kWidth>(bias + i * kWidth));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sum[j] += added[j];
    Store(Pack<T>(sum), y_row + i * kWidth);
  }
}

template <typename T>
struct BiasTerms {
  static constexpr int kSums = 1;
  int columns;
  const T* dy;

  template <int kWidth>
  __device__ __forceinline__ void Add(int64_t row, int64_t column,
                                      Floats<kWidth> (&sums)[kSums]) const {
    const Floats<kWidth> gradient = Unpack(LoadConstant<kWidth>(dy + row * columns + column));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) sums[0][j] += gradient[j];
  }
};

}  // namespace

template <typename T>
void AddBias(int rows, int columns, const T* bias, T* y, Stream& stream) {
  if (rows == 0 || columns == 0) return;
  const bool wide = IsWide<T>(columns, {bias, y});
  const TileGeometry g = MakeTileGeometry(rows, wide ? columns / kWide<T> : columns, kUnroll);
  Launch(stream, "add_bias", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Add<T, kWide<T>> : Add<T, 1>, rows, columns, g.chunks, bias, y);
}

size_t BiasWorkspaceBytes(int rows, int columns) {
  return ColumnSumBytes(rows, columns, BiasTerms<float>::kSums);
}

template <typename T>
void BiasBackward(int rows, int columns, const T* dy, bool adds, float* dbias,
                  const Workspace& workspace, Stream& stream) {
  if (rows == 0 || columns == 0) return;
  LaunchColumnSums<T>(
      "bias_backward", rows, columns, IsWide<T>(columns, {dy}), BiasTerms<T>{columns, dy},
      workspace.As<float>(BiasWorkspaceBytes(rows, columns)), adds, {dbias}, stream);
}

CONVENE_INSTANTIATE(AddBias);
CONVENE_INSTANTIATE(BiasBackward);

}  // namespace convene::worker::cuda
