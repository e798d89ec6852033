// Plain activations; the contract is ops/activation.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "worker_runtime/ops/activation.h"

namespace convene::worker::reference {

template <typename Real>
struct ActivationAt {
  Real value;
  Real slope;
};

// silu(x) = x s(x), silu'(x) = s(x) (1 + x (1 - s(x))); GELU as Hendrycks and Gimpel write it.
template <typename Real>
ActivationAt<Real> Activate(Activation activation, Real x) {
  if (activation == Activation::kSwiglu) {
    const Real sigmoid = Real{1} / (Real{1} + std::exp(-x));
    return {x * sigmoid, sigmoid * (Real{1} + x * (Real{1} - sigmoid))};
  }
  const Real root = static_cast<Real>(0.79788456080286535588);  // sqrt(2 / pi)
  const Real cubic = static_cast<Real>(0.044715);
  const Real tanh = std::tanh(root * (x + cubic * x * x * x));
  const Real inner_slope = root * (Real{1} + Real{3} * cubic * x * x);
  return {x * (Real{1} + tanh) / Real{2},
          (Real{1} + tanh) / Real{2} + x * (Real{1} - tanh * tanh) * inner_slope / Real{2}};
}

// g = min(gate, 7), u = clamp(up, -7, 7): g s(1.702 g) (u + 1).
template <typename Real>
struct ClampedSwiglu {
  ClampedSwiglu(Real gate, Real up) {
    const Real g = std::min(gate, Real{7});
    const Real factor = std::clamp(up, Real{-7}, Real{7}) + 1;
    const Real steepness = Real{1.702f};
    const Real sigmoid = Real{1} / (Real{1} + std::exp(-steepness * g));
    value = g * sigmoid * factor;
    if (gate <= 7) dgate = factor * sigmoid * (Real{1} + steepness * g * (Real{1} - sigmoid));
    if (up >= -7 && up <= 7) dup = g * sigmoid;
  }
  Real value;
  Real dgate = 0;
  Real dup = 0;
};

template <typename Real>
void ActivationForward(Activation activation, int rows, int width, const Real* x, Real* y) {
  const int inputs = ActivationInputs(activation);
  for (ptrdiff_t row = 0; row < rows; ++row) {
    for (ptrdiff_t i = 0; i < width; ++i) {
      const Real* gate = x + row * inputs * width + i;
      if (activation == Activation::kClampedSwiglu) {
        y[row * width + i] = ClampedSwiglu<Real>(*gate, gate[width]).value;
        continue;
      }
      y[row * width + i] = Activate(activation, *gate).value * (inputs == 2 ? gate[width] : 1);
    }
  }
}

template <typename Real>
void ActivationBackward(Activation activation, int rows, int width, const Real* x, const Real* dy,
                        Real* dx) {
  const int inputs = ActivationInputs(activation);
  for (ptrdiff_t row = 0; row < rows; ++row) {
    for (ptrdiff_t i = 0; i < width; ++i) {
      const ptrdiff_t gate = row * inputs * width + i;
      const Real gradient = dy[row * width + i];
      if (activation == Activation::kClampedSwiglu) {
        const ClampedSwiglu<Real> at(x[gate], x[gate + width]);
        dx[gate] = gradient * at.dgate;
        dx[gate + width] = gradient * at.dup;
        continue;
      }
      const ActivationAt<Real> at = Activate(activation, x[gate]);
      dx[gate] = gradient * at.slope * (inputs == 2 ? x[gate + width] : 1);
      if (inputs == 2) dx[gate + width] = gradient * at.value;
    }
  }
}

}  // namespace convene::worker::reference
