#include "worker_runtime/ops/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/softmax.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kStatisticsNanoseconds = 0.3;  // an element
constexpr double kGradientNanoseconds = 0.25;

}  // namespace

template <typename T>
void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                            const int32_t* targets, const T* logits, float* row_max, float* sums,
                            Stream& /*stream*/) {
  const int columns = vocabulary_end - vocabulary_begin;
  ForPieces(kStatisticsNanoseconds * rows * columns, rows, [=](int64_t row) {
    const T* logits_row = logits + row * columns;
    const int target = targets[row];
    const bool is_here = target >= vocabulary_begin && target < vocabulary_end;
    row_max[row] = Max(columns, logits_row);
    sums[2 * row] = ExpSum(columns, row_max[row], logits_row);
    sums[2 * row + 1] = is_here ? Widen(logits_row[target - vocabulary_begin]) : 0.0f;
  });
}

void CrossEntropyRescale(int rows, const float* slice_max, const float* row_max, float* sums,
                         Stream& /*stream*/) {
  for (int row = 0; row < rows; ++row) sums[2 * row] *= std::exp(slice_max[row] - row_max[row]);
}

size_t CrossEntropyWorkspaceBytes(int /*rows*/) { return 0; }

void CrossEntropyLoss(int rows, const int32_t* targets, const float* row_max, const float* sums,
                      double* loss_sum, const Workspace& /*workspace*/, Stream& /*stream*/) {
  // One thread, in the order of the rows: the same bits every time.
  double loss = 0;
  for (int row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    loss += std::log(static_cast<double>(sums[2 * row])) +
            (static_cast<double>(row_max[row]) - static_cast<double>(sums[2 * row + 1]));
  }
  *loss_sum += loss;
}

template <typename T>
void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                          const int32_t* targets, const float* row_max, const float* sums,
                          const float* gradient_scale, T* logits, Stream& /*stream*/) {
  const int columns = vocabulary_end - vocabulary_begin;
  const float scale = *gradient_scale;
  ForPieces(kGradientNanoseconds * rows * columns, rows, [=](int64_t row) {
    T* logits_row = logits + row * columns;
    const int target = targets[row];
    if (target < 0) {
      std::fill_n(logits_row, columns, T(0.0f));
      return;
    }
    const bool is_here = target >= vocabulary_begin && target < vocabulary_end;
    T* const target_logit = logits_row + (is_here ? target - vocabulary_begin : 0);
    // In float, before the gradient is rounded: near the end of training the two parts nearly
    // cancel.
    const float target_gradient =
        scale * (std::exp(Widen(*target_logit) - row_max[row]) / sums[2 * row] - 1.0f);
    ScaledExpInPlace(columns, row_max[row], scale / sums[2 * row], logits_row);
    if (is_here) Narrow(target_gradient, target_logit);
  });
}

CONVENE_INSTANTIATE(CrossEntropyStatistics);
CONVENE_INSTANTIATE(CrossEntropyGradient);

}  // namespace convene::worker::cpu
