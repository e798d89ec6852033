// SwiGLU, forward and backward: each element once through registers.
#include <cstdint>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/tile.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

constexpr int kForwardUnroll = 4;
constexpr int kBackwardUnroll = 2;

// 1 / (1 + e^-x). Where e^-x overflows, 0.
template <typename T>
__device__ __forceinline__ float Sigmoid(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return 1.0f / (1.0f + Exp<T>(-x));
  } else {
    return __fdividef(1.0f, 1.0f + Exp<T>(-x));
  }
}

// gate_up: (rows, 2 * width); y: (rows, width).
template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Forward(int rows, int width, int chunks, const T* gate_up, T* y) {
  const Tile tile(chunks, kForwardUnroll);
  if (tile.row >= rows) return;
  const int vectors = width / kWidth;
  const T* gate = gate_up + tile.row * 2 * width;
  T* y_row = y + tile.row * width;
  Vector<T, kWidth> gates[kForwardUnroll];
  Vector<T, kWidth> ups[kForwardUnroll];
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    gates[u] = LoadConstant<kWidth>(gate + i * kWidth);
    ups[u] = LoadConstant<kWidth>(gate + width + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    const Floats<kWidth> g = Unpack(gates[u]);
    Floats<kWidth> result = Unpack(ups[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) result[j] *= g[j] * Sigmoid<T>(g[j]);
    Store(Pack<T>(result), y_row + i * kWidth);
  }
}

// silu(g) = g s(g), silu'(g) = s(g) + silu(g) (1 - s(g)). dgate_up may be gate_up: a thread reads
// what it overwrites, and nobody else does.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Backward(int rows, int width, int chunks, const T* gate_up, const T* dy, T* dgate_up) {
  const Tile tile(chunks, kBackwardUnroll);
  if (tile.row >= rows) return;
  const int vectors = width / kWidth;
  const T* gate = gate_up + tile.row * 2 * width;
  const T* dy_row = dy + tile.row * width;
  T* dgate = dgate_up + tile.row * 2 * width;
  Vector<T, kWidth> gates[kBackwardUnroll];
  Vector<T, kWidth> ups[kBackwardUnroll];
  Vector<T, kWidth> gradients[kBackwardUnroll];
#pragma unroll
  for (int u = 0; u < kBackwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    gates[u] = Load<kWidth>(gate + i * kWidth);
    ups[u] = Load<kWidth>(gate + width + i * kWidth);
    gradients[u] = LoadConstant<kWidth>(dy_row + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kBackwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    Floats<kWidth> g = Unpack(gates[u]);
    Floats<kWidth> up = Unpack(ups[u]);
    const Floats<kWidth> gradient = Unpack(gradients[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float sigmoid = Sigmoid<T>(g[j]);
      const float silu = g[j] * sigmoid;
      g[j] = gradient[j] * up[j] * (sigmoid + silu * (1.0f - sigmoid));
      up[j] = gradient[j] * silu;
    }
    Store(Pack<T>(g), dgate + i * kWidth);
    Store(Pack<T>(up), dgate + width + i * kWidth);
  }
}

}  // namespace

template <typename T>
void SwigluForward(int rows, int width, const T* gate_up, T* y, Stream& stream) {
  if (rows == 0 || width == 0) return;
  const bool wide = IsWide<T>(width, {gate_up, y});
  const TileGeometry g = MakeTileGeometry(rows, wide ? width / kWide<T> : width, kForwardUnroll);
  Launch(stream, "swiglu_forward", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Forward<T, kWide<T>> : Forward<T, 1>, rows, width, g.chunks, gate_up, y);
}

template <typename T>
void SwigluBackward(int rows, int width, const T* gate_up, const T* dy, T* dgate_up,
                    Stream& stream) {
  if (rows == 0 || width == 0) return;
  const bool wide = IsWide<T>(width, {gate_up, dy, dgate_up});
  const TileGeometry g = MakeTileGeometry(rows, wide ? width / kWide<T> : width, kBackwardUnroll);
  Launch(stream, "swiglu_backward", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Backward<T, kWide<T>> : Backward<T, 1>, rows, width, g.chunks, gate_up, dy,
         dgate_up);
}

CONVENE_INSTANTIATE(SwigluForward);
CONVENE_INSTANTIATE(SwigluBackward);

}  // namespace convene::worker::cuda
