// Plain cross-entropy; the contract is ops/cross_entropy.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace convene::worker::reference {

template <typename Real>
void CrossEntropyRowMax(int rows, int columns, const Real* logits, Real* row_max) {
  for (ptrdiff_t row = 0; row < rows; ++row) {
    row_max[row] = *std::max_element(logits + row * columns, logits + (row + 1) * columns);
  }
}

template <typename Real>
void CrossEntropyExpSums(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* targets,
                         const Real* row_max, Real* logits, Real* sums) {
  const ptrdiff_t columns = vocabulary_end - vocabulary_begin;
  for (ptrdiff_t row = 0; row < rows; ++row) {
    sums[2 * row] = 0;
    sums[2 * row + 1] = 0;
    for (ptrdiff_t i = 0; i < columns; ++i) {
      Real& logit = logits[row * columns + i];
      if (vocabulary_begin + i == targets[row]) sums[2 * row + 1] = logit - row_max[row];
      logit = std::exp(logit - row_max[row]);
      sums[2 * row] += logit;
    }
  }
}

template <typename Real>
double CrossEntropyLossAndGradient(int rows, int vocabulary_begin, int vocabulary_end,
                                   const int32_t* targets, const Real* sums, Real gradient_scale,
                                   Real* logits) {
  const ptrdiff_t columns = vocabulary_end - vocabulary_begin;
  double loss = 0;
  for (ptrdiff_t row = 0; row < rows; ++row) {
    const bool counts = targets[row] >= 0;
    if (counts) loss += std::log(double{sums[2 * row]}) - double{sums[2 * row + 1]};
    for (ptrdiff_t i = 0; i < columns; ++i) {
      const Real probability = logits[row * columns + i] / sums[2 * row];
      const Real onehot = vocabulary_begin + i == targets[row] ? Real{1} : Real{0};
      logits[row * columns + i] = counts ? gradient_scale * (probability - onehot) : Real{0};
    }
  }
  return loss;
}

}  // namespace convene::worker::reference
