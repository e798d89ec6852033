// Plain cross-entropy; the contract is ops/cross_entropy.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace convene::worker::reference {

template <typename Real>
void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                            const int32_t* targets, const Real* logits, Real* row_max, Real* sums) {
  const ptrdiff_t columns = vocabulary_end - vocabulary_begin;
  for (ptrdiff_t row = 0; row < rows; ++row) {
    const Real* const x = logits + row * columns;
    row_max[row] = *std::max_element(x, x + columns);
    sums[2 * row] = 0;
    sums[2 * row + 1] = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      sums[2 * row] += std::exp(x[i] - row_max[row]);
      if (vocabulary_begin + i == targets[row]) sums[2 * row + 1] = x[i];
    }
  }
}

template <typename Real>
double CrossEntropyLoss(int rows, const int32_t* targets, const Real* row_max, const Real* sums) {
  double loss = 0;
  for (ptrdiff_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    loss += std::log(double{sums[2 * row]}) + double{row_max[row]} - double{sums[2 * row + 1]};
  }
  return loss;
}

template <typename Real>
void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                          const int32_t* targets, const Real* row_max, const Real* sums,
                          Real gradient_scale, Real* logits) {
  const ptrdiff_t columns = vocabulary_end - vocabulary_begin;
  for (ptrdiff_t row = 0; row < rows; ++row) {
    for (ptrdiff_t i = 0; i < columns; ++i) {
      Real& x = logits[row * columns + i];
      const Real probability = std::exp(x - row_max[row]) / sums[2 * row];
      const Real onehot = vocabulary_begin + i == targets[row] ? Real{1} : Real{0};
      x = targets[row] >= 0 ? gradient_scale * (probability - onehot) : Real{0};
    }
  }
}

}  // namespace convene::worker::reference
