// Plain SwiGLU; the contract is ops/swiglu.h.
#pragma once

#include <cmath>
#include <cstddef>

namespace convene::worker::reference {

template <typename Real>
void SwigluForward(int rows, int width, const Real* gate_up, Real* y) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    for (ptrdiff_t i = 0; i < width; ++i) {
      const Real gate = gate_up[row * 2 * width + i];
      const Real up = gate_up[row * 2 * width + width + i];
      y[row * width + i] = gate / (Real{1} + std::exp(-gate)) * up;
    }
  }
}

// silu(g) = g s(g), silu'(g) = s(g) (1 + g (1 - s(g))).
template <typename Real>
void SwigluBackward(int rows, int width, const Real* gate_up, const Real* dy, Real* dgate_up) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    for (ptrdiff_t i = 0; i < width; ++i) {
      const ptrdiff_t gate_index = row * 2 * width + i;
      const ptrdiff_t up_index = gate_index + width;
      const Real gate = gate_up[gate_index];
      const Real up = gate_up[up_index];
      const Real gradient = dy[row * width + i];
      const Real sigmoid = Real{1} / (Real{1} + std::exp(-gate));
      dgate_up[gate_index] = gradient * up * sigmoid * (Real{1} + gate * (Real{1} - sigmoid));
      dgate_up[up_index] = gradient * gate * sigmoid;
    }
  }
}

}  // namespace convene::worker::reference
