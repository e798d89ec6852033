// Activations, forward and backward: each element once through registers.
#include <cstdint>

#include "worker_runtime/ops/clamped_gate.h"
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

// 2 sqrt(2 / pi) (x + 0.044715 x^3), and its slope.
constexpr float kRoot = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
template <Activation kActivation>
__device__ __forceinline__ float Inner(float x) {
  if (kActivation == Activation::kSwiglu) return x;
  if (kActivation == Activation::kClampedSwiglu) return kClampedSteepness * x;
  return kRoot * (x + kCubic * x * x * x);
}
template <Activation kActivation>
__device__ __forceinline__ float InnerSlope(float x) {
  if (kActivation == Activation::kSwiglu) return 1.0f;
  if (kActivation == Activation::kClampedSwiglu) return kClampedSteepness;
  return kRoot * (1.0f + 3.0f * kCubic * x * x);
}

// x: (rows, ActivationInputs * width); y: (rows, width).
template <Activation kActivation, typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Forward(int rows, int width, int chunks, const T* x, T* y) {
  constexpr int kInputs = ActivationInputs(kActivation);
  const Tile tile(chunks, kForwardUnroll);
  if (tile.row >= rows) return;
  const int vectors = width / kWidth;
  const T* gate = x + tile.row * kInputs * width;
  T* y_row = y + tile.row * width;
  Vector<T, kWidth> gates[kForwardUnroll];
  Vector<T, kWidth> ups[kForwardUnroll];
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    gates[u] = LoadConstant<kWidth>(gate + i * kWidth);
    if constexpr (kInputs == 2) ups[u] = LoadConstant<kWidth>(gate + width + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kForwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    const Floats<kWidth> g = Unpack(gates[u]);
    Floats<kWidth> result;
    if constexpr (kInputs == 2) result = Unpack(ups[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float gate_j = ClampedGate(kActivation, g[j]);
      const float value = gate_j * Sigmoid<T>(Inner<kActivation>(gate_j));
      result[j] = kInputs == 2 ? UpFactor(kActivation, result[j]) * value : value;
    }
    Store(Pack<T>(result), y_row + i * kWidth);
  }
}

// With v = x s(a(x)): v' = s + v (1 - s) a'. dx may be x: a thread reads what it overwrites, and
// nobody else does.
template <Activation kActivation, typename T, int kWidth>
__global__ void __launch_bounds__(kTileThreads)
    Backward(int rows, int width, int chunks, const T* x, const T* dy, T* dx) {
  constexpr int kInputs = ActivationInputs(kActivation);
  const Tile tile(chunks, kBackwardUnroll);
  if (tile.row >= rows) return;
  const int vectors = width / kWidth;
  const T* gate = x + tile.row * kInputs * width;
  const T* dy_row = dy + tile.row * width;
  T* dgate = dx + tile.row * kInputs * width;
  Vector<T, kWidth> gates[kBackwardUnroll];
  Vector<T, kWidth> ups[kBackwardUnroll];
  Vector<T, kWidth> gradients[kBackwardUnroll];
#pragma unroll
  for (int u = 0; u < kBackwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    gates[u] = Load<kWidth>(gate + i * kWidth);
    if constexpr (kInputs == 2) ups[u] = Load<kWidth>(gate + width + i * kWidth);
    gradients[u] = LoadConstant<kWidth>(dy_row + i * kWidth);
  }
#pragma unroll
  for (int u = 0; u < kBackwardUnroll; ++u) {
    const int64_t i = tile.VectorAt(u);
    if (i >= vectors) break;
    Floats<kWidth> g = Unpack(gates[u]);
    Floats<kWidth> up;
    if constexpr (kInputs == 2) up = Unpack(ups[u]);
    const Floats<kWidth> gradient = Unpack(gradients[u]);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const float gate_j = ClampedGate(kActivation, g[j]);
      const float sigmoid = Sigmoid<T>(Inner<kActivation>(gate_j));
      const float value = gate_j * sigmoid;
      const float slope = sigmoid + value * (1.0f - sigmoid) * InnerSlope<kActivation>(gate_j);
      const float factor = kInputs == 2 ? UpFactor(kActivation, up[j]) : 1.0f;
      g[j] = IsGateClamped(kActivation, g[j]) ? 0.0f : gradient[j] * factor * slope;
      if constexpr (kInputs == 2) {
        up[j] = IsUpClamped(kActivation, up[j]) ? 0.0f : gradient[j] * value;
      }
    }
    Store(Pack<T>(g), dgate + i * kWidth);
    if constexpr (kInputs == 2) Store(Pack<T>(up), dgate + width + i * kWidth);
  }
}

template <Activation kActivation, typename T>
void LaunchForward(int rows, int width, const T* x, T* y, Stream& stream) {
  const bool wide = IsWide<T>(width, {x, y});
  const TileGeometry g = MakeTileGeometry(rows, wide ? width / kWide<T> : width, kForwardUnroll);
  Launch(stream, "activation_forward", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Forward<kActivation, T, kWide<T>> : Forward<kActivation, T, 1>, rows, width,
         g.chunks, x, y);
}

template <Activation kActivation, typename T>
void LaunchBackward(int rows, int width, const T* x, const T* dy, T* dx, Stream& stream) {
  const bool wide = IsWide<T>(width, {x, dy, dx});
  const TileGeometry g = MakeTileGeometry(rows, wide ? width / kWide<T> : width, kBackwardUnroll);
  Launch(stream, "activation_backward", g.blocks, dim3(g.threads, g.rows_per_block),
         wide ? Backward<kActivation, T, kWide<T>> : Backward<kActivation, T, 1>, rows, width,
         g.chunks, x, dy, dx);
}

}  // namespace

template <typename T>
void ActivationForward(Activation activation, int rows, int width, const T* x, T* y,
                       Stream& stream) {
  if (rows == 0 || width == 0) return;
  switch (activation) {
    case Activation::kSwiglu:
      return LaunchForward<Activation::kSwiglu>(rows, width, x, y, stream);
    case Activation::kGeglu:
      return LaunchForward<Activation::kGeglu>(rows, width, x, y, stream);
    case Activation::kClampedSwiglu:
      return LaunchForward<Activation::kClampedSwiglu>(rows, width, x, y, stream);
    case Activation::kGelu:
      return LaunchForward<Activation::kGelu>(rows, width, x, y, stream);
  }
}

template <typename T>
void ActivationBackward(Activation activation, int rows, int width, const T* x, const T* dy, T* dx,
                        Stream& stream) {
  if (rows == 0 || width == 0) return;
  switch (activation) {
    case Activation::kSwiglu:
      return LaunchBackward<Activation::kSwiglu>(rows, width, x, dy, dx, stream);
    case Activation::kGeglu:
      return LaunchBackward<Activation::kGeglu>(rows, width, x, dy, dx, stream);
    case Activation::kClampedSwiglu:
      return LaunchBackward<Activation::kClampedSwiglu>(rows, width, x, dy, dx, stream);
    case Activation::kGelu:
      return LaunchBackward<Activation::kGelu>(rows, width, x, dy, dx, stream);
  }
}

CONVENE_INSTANTIATE(ActivationForward);
CONVENE_INSTANTIATE(ActivationBackward);

}  // namespace convene::worker::cuda
