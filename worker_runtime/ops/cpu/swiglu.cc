#include "worker_runtime/ops/swiglu.h"

#include <cstddef>

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker {
namespace {

constexpr int kParallelRows = 32;

// 1 / (1 + e^-x), through e^-|x| so that nothing overflows.
CONVENE_CPU_INLINE float Sigmoid(float x) {
  const float e = cpu::Exp(-__builtin_fabsf(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

CONVENE_CPU_CLONES void ForwardRow(int width, const float* gate, const float* up, float* y) {
#pragma omp simd
  for (int i = 0; i < width; ++i) y[i] = gate[i] * Sigmoid(gate[i]) * up[i];
}

// Reads gate and up before it writes their place: dgate may be gate, and dup may be up.
CONVENE_CPU_CLONES void BackwardRow(int width, const float* gate, const float* up, const float* dy,
                                    float* dgate, float* dup) {
#pragma omp simd
  for (int i = 0; i < width; ++i) {
    const float g = gate[i];
    const float u = up[i];
    const float sigmoid = Sigmoid(g);
    const float silu = g * sigmoid;
    dgate[i] = dy[i] * u * (sigmoid + silu * (1.0f - sigmoid));
    dup[i] = dy[i] * silu;
  }
}

}  // namespace

void SwigluForward(int rows, int width, const float* gate_up, float* y, Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (rows >= kParallelRows)
  for (int row = 0; row < rows; ++row) {
    const float* gate = gate_up + static_cast<ptrdiff_t>(row) * 2 * width;
    ForwardRow(width, gate, gate + width, y + static_cast<ptrdiff_t>(row) * width);
  }
}

void SwigluBackward(int rows, int width, const float* gate_up, const float* dy, float* dgate_up,
                    Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (rows >= kParallelRows)
  for (int row = 0; row < rows; ++row) {
    const ptrdiff_t offset = static_cast<ptrdiff_t>(row) * 2 * width;
    BackwardRow(width, gate_up + offset, gate_up + offset + width,
                dy + static_cast<ptrdiff_t>(row) * width, dgate_up + offset,
                dgate_up + offset + width);
  }
}

}  // namespace convene::worker
