// Plain RMSNorm; the contract is ops/rms_norm.h.
#pragma once

#include <cmath>
#include <cstddef>

namespace convene::worker::reference {

template <typename Real>
void RmsNormForward(int rows, int columns, const Real* x, const Real* weight, Real epsilon, Real* y,
                    Real* inverse_rms) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    Real sum = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) sum += x[row * columns + i] * x[row * columns + i];
    inverse_rms[row] = Real{1} / std::sqrt(sum / static_cast<Real>(columns) + epsilon);
    for (ptrdiff_t i = 0; i < columns; ++i) {
      y[row * columns + i] = x[row * columns + i] * inverse_rms[row] * weight[i];
    }
  }
}

// y_i = x_i r w_i with r = (mean(x^2) + epsilon)^(-1/2) and dr/dx_j = -r^3 x_j / columns.
template <typename Real>
void RmsNormBackward(int rows, int columns, const Real* x, const Real* weight,
                     const Real* inverse_rms, const Real* dy, Real* dx, Real* dweight) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    const Real r = inverse_rms[row];
    Real dr = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      dr += dy[row * columns + i] * weight[i] * x[row * columns + i];
      dweight[i] += dy[row * columns + i] * x[row * columns + i] * r;
    }
    for (ptrdiff_t i = 0; i < columns; ++i) {
      dx[row * columns + i] += dy[row * columns + i] * weight[i] * r -
                               dr * r * r * r * x[row * columns + i] / static_cast<Real>(columns);
    }
  }
}

}  // namespace convene::worker::reference
