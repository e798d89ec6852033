// Plain LayerNorm; the contract is ops/layer_norm.h.
#pragma once

#include <cmath>
#include <cstddef>

namespace convene::worker::reference {

template <typename Real>
void LayerNormForward(int rows, int columns, const Real* x, const Real* weight, const Real* bias,
                      Real epsilon, Real* y, Real* statistics) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    const Real* values = x + row * columns;
    Real mean = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) mean += values[i];
    mean /= static_cast<Real>(columns);
    Real variance = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) variance += (values[i] - mean) * (values[i] - mean);
    variance /= static_cast<Real>(columns);
    const Real inverse = Real{1} / std::sqrt(variance + epsilon);
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = inverse;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      y[row * columns + i] = (values[i] - mean) * inverse * weight[i] + bias[i];
    }
  }
}

// With n = (x - mean) r and g = dy weight: dx = r (g - mean(g) - n mean(g n)).
template <typename Real>
void LayerNormBackward(int rows, int columns, const Real* x, const Real* weight,
                       const Real* statistics, const Real* dy, Real* dx, Real* dweight,
                       Real* dbias) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    const Real mean = statistics[2 * row];
    const Real r = statistics[2 * row + 1];
    Real sum = 0;
    Real dot = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      const Real n = (x[row * columns + i] - mean) * r;
      const Real gradient = dy[row * columns + i];
      sum += gradient * weight[i];
      dot += gradient * weight[i] * n;
      dweight[i] += gradient * n;
      dbias[i] += gradient;
    }
    for (ptrdiff_t i = 0; i < columns; ++i) {
      const Real n = (x[row * columns + i] - mean) * r;
      dx[row * columns + i] +=
          r * (dy[row * columns + i] * weight[i] - sum / static_cast<Real>(columns) -
               n * dot / static_cast<Real>(columns));
    }
  }
}

}  // namespace convene::worker::reference
