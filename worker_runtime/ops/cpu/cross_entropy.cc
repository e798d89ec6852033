#include "worker_runtime/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/softmax.h"

namespace convene::worker {
namespace {

constexpr int64_t kParallelElements = 1 << 14;

bool IsLarge(int rows, int columns) {
  return static_cast<int64_t>(rows) * columns >= kParallelElements;
}

CONVENE_CPU_CLONES void Scale(int columns, float factor, float* x) {
#pragma omp simd
  for (int i = 0; i < columns; ++i) x[i] *= factor;
}

}  // namespace

void CrossEntropyRowMax(int rows, int columns, const float* logits, float* row_max,
                        Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int row = 0; row < rows; ++row) {
    row_max[row] = cpu::Max(columns, logits + static_cast<ptrdiff_t>(row) * columns);
  }
}

void CrossEntropyExpSums(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* targets,
                         const float* row_max, float* logits, float* sums, Stream& /*stream*/) {
  const int columns = vocabulary_end - vocabulary_begin;
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int row = 0; row < rows; ++row) {
    float* logits_row = logits + static_cast<ptrdiff_t>(row) * columns;
    const int target = targets[row];
    const bool is_here = target >= vocabulary_begin && target < vocabulary_end;
    sums[2 * row + 1] = is_here ? logits_row[target - vocabulary_begin] - row_max[row] : 0.0f;
    sums[2 * row] = cpu::ExpInPlace(columns, row_max[row], logits_row);
  }
}

double CrossEntropyLossAndGradient(int rows, int vocabulary_begin, int vocabulary_end,
                                   const int32_t* targets, const float* sums, float gradient_scale,
                                   float* logits, Stream& /*stream*/) {
  const int columns = vocabulary_end - vocabulary_begin;
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int row = 0; row < rows; ++row) {
    float* logits_row = logits + static_cast<ptrdiff_t>(row) * columns;
    const int target = targets[row];
    if (target < 0) {
      std::fill_n(logits_row, columns, 0.0f);
      continue;
    }
    Scale(columns, gradient_scale / sums[2 * row], logits_row);
    if (target >= vocabulary_begin && target < vocabulary_end) {
      logits_row[target - vocabulary_begin] -= gradient_scale;
    }
  }
  // One thread, in the order of the rows: the same bits every time.
  double loss = 0;
  for (int row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    loss += std::log(static_cast<double>(sums[2 * row])) - static_cast<double>(sums[2 * row + 1]);
  }
  return loss;
}

}  // namespace convene::worker
