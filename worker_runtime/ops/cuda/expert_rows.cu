// Rows on their way to experts and back.
#include <cstdint>
#include <limits>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kCombineUnroll = 2;
constexpr int kWeighedRows = 8;  // of a block: a warp takes a row

template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Combine(int rows, int columns, int chunks, int terms, const int32_t* places,
            const float* weights, const T* x, bool adds, T* y) {
  const Tile tile(chunks, kCombineUnroll);
  if (tile.row >= rows) return;
  const int vectors = columns / kWidth;
  T* const to = y + tile.row * columns;
  Floats<kWidth> sums[kCombineUnroll] = {};
#pragma unroll
  for (int u = 0; u < kCombineUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (adds && i < vectors) sums[u] = Unpack(Load<kWidth>(to + i * kWidth));
  }
#pragma unroll 4
  for (int64_t term = tile.row * terms; term < (tile.row + 1) * terms; ++term) {
    const int place = places[term];
    if (place < 0) continue;
    const float weight = weights != nullptr ? weights[term] : 1.0f;
    const T* const from = x + int64_t{place} * columns;
#pragma unroll
    for (int u = 0; u < kCombineUnroll; ++u) {
      const int64_t i = tile.VectorAt(u);
      if (i >= vectors) break;
      const Floats<kWidth> value = Unpack(LoadConstant<kWidth>(from + i * kWidth));
#pragma unroll
      for (int j = 0; j < kWidth; ++j) sums[u][j] += weight * value[j];
    }
  }
#pragma unroll
  for (int u = 0; u < kCombineUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i < vectors) Store(Pack<T>(sums[u]), to + i * kWidth);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kWarp* kWeighedRows)
    Weigh(int64_t rows, int columns, const float* weights, T* y, T* dy, float* dweights) {
  const int64_t row = int64_t{blockIdx.x} * kWeighedRows + threadIdx.y;
  if (row >= rows) return;
  const float weight = weights[row];
  y += row * columns;
  dy += row * columns;
  float dot = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < columns; i += kWarp * kWidth) {
    Floats<kWidth> value = Unpack(Load<kWidth>(y + i));
    Floats<kWidth> gradient = Unpack(Load<kWidth>(dy + i));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dot += value[j] * gradient[j];
      value[j] *= weight;
      gradient[j] *= weight;
    }
    Store(Pack<T>(value), y + i);
    Store(Pack<T>(gradient), dy + i);
  }
  dot = WarpSum(dot);
  if (threadIdx.x == 0) dweights[row] = dot;
}

__device__ __forceinline__ float GateOf(float logit) { return 1.0f / (1.0f + expf(-logit)); }

template <typename T, int kWidth>
__global__ void __launch_bounds__(kWarp* kWeighedRows)
    Gate(int64_t rows, int columns, const float* logits, T* y) {
  const int64_t row = int64_t{blockIdx.x} * kWeighedRows + threadIdx.y;
  if (row >= rows) return;
  const float gate = GateOf(logits[row]);
  y += row * columns;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < columns; i += kWarp * kWidth) {
    Floats<kWidth> value = Unpack(Load<kWidth>(y + i));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) value[j] *= gate;
    Store(Pack<T>(value), y + i);
  }
}

template <typename T, int kWidth>
__global__ void __launch_bounds__(kWarp* kWeighedRows)
    GateBackward(int64_t rows, int columns, const float* logits, const T* y, T* dy, T* dlogits) {
  const int64_t row = int64_t{blockIdx.x} * kWeighedRows + threadIdx.y;
  if (row >= rows) return;
  const float gate = GateOf(logits[row]);
  y += row * columns;
  dy += row * columns;
  float dot = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kWidth; i < columns; i += kWarp * kWidth) {
    const Floats<kWidth> value = Unpack(LoadConstant<kWidth>(y + i));
    Floats<kWidth> gradient = Unpack(Load<kWidth>(dy + i));
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      dot += value[j] * gradient[j];
      gradient[j] *= gate;
    }
    Store(Pack<T>(gradient), dy + i);
  }
  dot = WarpSum(dot);
  if (threadIdx.x == 0) Narrow((1 - gate) * dot, dlogits + row);
}

}  // namespace

// An embedding whose table is x.
template <typename T>
void GatherRows(int64_t rows, int columns, const int32_t* from, const T* x, T* y, Stream& stream) {
  cuda::EmbeddingForward(static_cast<int>(rows), columns, 0, std::numeric_limits<int>::max(), from,
                         x, /*adds=*/false, y, stream);
}

template <typename T>
void CombineRows(int64_t rows, int columns, int terms, const int32_t* places, const float* weights,
                 const T* x, bool adds, T* y, Stream& stream) {
  const bool is_wide = IsWide<T>(columns, {x, y});
  const TileGeometry g = MakeTileGeometry(static_cast<int>(rows),
                                          is_wide ? columns / kWide<T> : columns, kCombineUnroll);
  Launch(stream, "combine_rows", g.blocks, dim3(g.threads, g.rows_per_block),
         is_wide ? Combine<T, kWide<T>> : Combine<T, 1>, static_cast<int>(rows), columns, g.chunks,
         terms, places, weights, x, adds, y);
}

template <typename T>
void WeighRows(int64_t rows, int columns, const float* weights, T* y, T* dy, float* dweights,
               Stream& stream) {
  Launch(stream, "weigh_rows", CeilDivide(rows, kWeighedRows), dim3(kWarp, kWeighedRows),
         IsWide<T>(columns, {y, dy}) ? Weigh<T, kWide<T>> : Weigh<T, 1>, rows, columns, weights, y,
         dy, dweights);
}

template <typename T>
void GateRows(int64_t rows, int columns, const float* logits, T* y, Stream& stream) {
  Launch(stream, "gate_rows", CeilDivide(rows, kWeighedRows), dim3(kWarp, kWeighedRows),
         IsWide<T>(columns, {y}) ? Gate<T, kWide<T>> : Gate<T, 1>, rows, columns, logits, y);
}

template <typename T>
void GateRowsBackward(int64_t rows, int columns, const float* logits, const T* y, T* dy, T* dlogits,
                      Stream& stream) {
  Launch(stream, "gate_rows_backward", CeilDivide(rows, kWeighedRows), dim3(kWarp, kWeighedRows),
         IsWide<T>(columns, {y, dy}) ? GateBackward<T, kWide<T>> : GateBackward<T, 1>, rows,
         columns, logits, y, dy, dlogits);
}

CONVENE_INSTANTIATE(GatherRows);
CONVENE_INSTANTIATE(CombineRows);
CONVENE_INSTANTIATE(WeighRows);
CONVENE_INSTANTIATE(GateRows);
CONVENE_INSTANTIATE(GateRowsBackward);

}  // namespace convene::worker::cuda
