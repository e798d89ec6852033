// Plain sums of rows and products of groups; the contracts are ops/expert_rows.h and
// ops/grouped_matmul.h.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker_runtime/ops/testing/reference/matmul.h"

namespace convene::worker::reference {

template <typename Real>
void CombineRows(int64_t rows, int columns, int terms, const int32_t* places, const float* weights,
                 const Real* x, Real* y) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t term = row * terms; term < (row + 1) * terms; ++term) {
      if (places[term] < 0) continue;
      const Real weight = weights != nullptr ? weights[term] : 1;
      for (int64_t i = 0; i < columns; ++i) {
        y[row * columns + i] += weight * x[int64_t{places[term]} * columns + i];
      }
    }
  }
}

template <typename Real>
void WeighRows(int64_t rows, int columns, const float* weights, Real* y, Real* dy, Real* dweights) {
  for (int64_t row = 0; row < rows; ++row) {
    dweights[row] = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      dweights[row] += y[i] * dy[i];
      y[i] *= weights[row];
      dy[i] *= weights[row];
    }
  }
}

template <typename Real>
Real GateOf(float logit) {
  return 1 / (1 + std::exp(-static_cast<Real>(logit)));
}

template <typename Real>
void GateRows(int64_t rows, int columns, const float* logits, Real* y) {
  for (int64_t i = 0; i < rows * columns; ++i) y[i] *= GateOf<Real>(logits[i / columns]);
}

template <typename Real>
void GateRowsBackward(int64_t rows, int columns, const float* logits, const Real* y, Real* dy,
                      Real* dlogits) {
  for (int64_t row = 0; row < rows; ++row) {
    dlogits[row] = 0;
    for (int64_t i = row * columns; i < (row + 1) * columns; ++i) {
      dlogits[row] += (1 - GateOf<Real>(logits[row])) * y[i] * dy[i];
      dy[i] *= GateOf<Real>(logits[row]);
    }
  }
}

template <typename Real>
void GroupedMatMul(Transpose transpose_b, const std::vector<int32_t>& begin, int n, int k,
                   const Real* a, const Real* b, Real beta, Real* c) {
  for (size_t group = 0; group + 1 < begin.size(); ++group) {
    const ptrdiff_t first = begin[group];
    MatMul<Real>(Transpose::kNo, transpose_b, begin[group + 1] - begin[group], n, k, a + first * k,
                 b + static_cast<ptrdiff_t>(group) * n * k, beta, c + first * n);
  }
}

template <typename Real>
void GroupedWeightGradient(const std::vector<int32_t>& begin, int m, int n, const Real* a,
                           const Real* b, Real beta, Real* c) {
  for (size_t group = 0; group + 1 < begin.size(); ++group) {
    const ptrdiff_t first = begin[group];
    MatMul<Real>(Transpose::kYes, Transpose::kNo, m, n, begin[group + 1] - begin[group],
                 a + first * m, b + first * n, beta, c + static_cast<ptrdiff_t>(group) * m * n);
  }
}

}  // namespace convene::worker::reference
