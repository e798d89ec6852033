#include "worker_runtime/ops/activation.h"

#include <cstdint>

#include "worker_runtime/ops/clamped_gate.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kForwardNanoseconds = 0.37;  // an element
constexpr double kBackwardNanoseconds = 0.45;

// 2 sqrt(2 / pi) (x + 0.044715 x^3), and its slope.
constexpr float kRoot = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
CONVENE_CPU_INLINE float Inner(Activation activation, float x) {
  if (activation == Activation::kSwiglu) return x;
  if (activation == Activation::kClampedSwiglu) return kClampedSteepness * x;
  return kRoot * (x + kCubic * x * x * x);
}
CONVENE_CPU_INLINE float InnerSlope(Activation activation, float x) {
  if (activation == Activation::kSwiglu) return 1.0f;
  if (activation == Activation::kClampedSwiglu) return kClampedSteepness;
  return kRoot * (1.0f + 3.0f * kCubic * x * x);
}

template <Activation kActivation, typename T>
CONVENE_CPU_CLONES void ForwardRow(int width, const T* gate, T* y) {
  constexpr bool kGated = ActivationInputs(kActivation) == 2;
#pragma omp simd
  for (int i = 0; i < width; ++i) {
    const float g = ClampedGate(kActivation, Widen(gate[i]));
    const float up = kGated ? UpFactor(kActivation, Widen(gate[i + width])) : 1.0f;
    Narrow(g * Sigmoid(Inner(kActivation, g)) * up, &y[i]);
  }
}

// Reads gate and up before it writes their place: dgate may be gate.
template <Activation kActivation, typename T>
CONVENE_CPU_CLONES void BackwardRow(int width, const T* gate, const T* dy, T* dgate) {
  constexpr bool kGated = ActivationInputs(kActivation) == 2;
#pragma omp simd
  for (int i = 0; i < width; ++i) {
    const float gate_i = Widen(gate[i]);
    const float up_i = kGated ? Widen(gate[i + width]) : 1.0f;
    const float g = ClampedGate(kActivation, gate_i);
    const float u = kGated ? UpFactor(kActivation, up_i) : 1.0f;
    const float d = Widen(dy[i]);
    const float sigmoid = Sigmoid(Inner(kActivation, g));
    const float value = g * sigmoid;
    const float slope = InnerSlope(kActivation, g);
    const float dg = d * u * (sigmoid + value * (1.0f - sigmoid) * slope);
    Narrow(IsGateClamped(kActivation, gate_i) ? 0.0f : dg, &dgate[i]);
    if (kGated) Narrow(IsUpClamped(kActivation, up_i) ? 0.0f : d * value, &dgate[i + width]);
  }
}

template <Activation kActivation, typename T>
void Forward(int rows, int width, const T* x, T* y) {
  ForPieces(kForwardNanoseconds * rows * width, rows, [=](int64_t row) {
    ForwardRow<kActivation>(width, x + row * ActivationInputs(kActivation) * width,
                            y + row * width);
  });
}

template <Activation kActivation, typename T>
void Backward(int rows, int width, const T* x, const T* dy, T* dx) {
  ForPieces(kBackwardNanoseconds * rows * width, rows, [=](int64_t row) {
    const int64_t offset = row * ActivationInputs(kActivation) * width;
    BackwardRow<kActivation>(width, x + offset, dy + row * width, dx + offset);
  });
}

}  // namespace

template <typename T>
void ActivationForward(Activation activation, int rows, int width, const T* x, T* y,
                       Stream& /*stream*/) {
  switch (activation) {
    case Activation::kSwiglu:
      return Forward<Activation::kSwiglu>(rows, width, x, y);
    case Activation::kGeglu:
      return Forward<Activation::kGeglu>(rows, width, x, y);
    case Activation::kClampedSwiglu:
      return Forward<Activation::kClampedSwiglu>(rows, width, x, y);
    case Activation::kGelu:
      return Forward<Activation::kGelu>(rows, width, x, y);
  }
}

template <typename T>
void ActivationBackward(Activation activation, int rows, int width, const T* x, const T* dy, T* dx,
                        Stream& /*stream*/) {
  switch (activation) {
    case Activation::kSwiglu:
      return Backward<Activation::kSwiglu>(rows, width, x, dy, dx);
    case Activation::kGeglu:
      return Backward<Activation::kGeglu>(rows, width, x, dy, dx);
    case Activation::kClampedSwiglu:
      return Backward<Activation::kClampedSwiglu>(rows, width, x, dy, dx);
    case Activation::kGelu:
      return Backward<Activation::kGelu>(rows, width, x, dy, dx);
  }
}

CONVENE_INSTANTIATE(ActivationForward);
CONVENE_INSTANTIATE(ActivationBackward);

}  // namespace convene::worker::cpu
