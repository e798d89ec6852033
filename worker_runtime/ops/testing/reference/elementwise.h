// Plain sums; the contract is ops/elementwise.h.
#pragma once

#include <cstdint>

namespace convene::worker::reference {

template <typename Real>
void AddInPlace(int64_t count, const Real* x, Real* y) {
  for (int64_t i = 0; i < count; ++i) y[i] += x[i];
}

template <typename Real>
double SumOfSquares(int64_t count, const Real* x) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double{x[i]} * double{x[i]};
  return sum;
}

}  // namespace convene::worker::reference
