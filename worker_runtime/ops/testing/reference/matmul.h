// Plain matrix product; the contract is ops/matmul.h.
#pragma once

#include <cstddef>

#include "worker_runtime/ops/matmul.h"

namespace convene::worker::reference {

template <typename Real>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const Real* a,
            const Real* b, Real beta, Real* c) {
  for (ptrdiff_t i = 0; i < m; ++i) {
    for (ptrdiff_t j = 0; j < n; ++j) {
      Real sum = 0;
      for (ptrdiff_t l = 0; l < k; ++l) {
        const Real left = transpose_a == Transpose::kYes ? a[l * m + i] : a[i * k + l];
        const Real right = transpose_b == Transpose::kYes ? b[j * k + l] : b[l * n + j];
        sum += left * right;
      }
      c[i * n + j] = beta == Real{0} ? sum : sum + beta * c[i * n + j];
    }
  }
}

}  // namespace convene::worker::reference
