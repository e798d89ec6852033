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

// `target`: the column of the row's target; outside of [0, columns) where it is not of this slice.
template <typename T>
void RowStatistics(int columns, int target, const T* logits, float* row_max, float* sums) {
  const bool is_here = target >= 0 && target < columns;
  *row_max = Max(columns, logits);
  sums[0] = ExpSum(columns, *row_max, logits);
  sums[1] = is_here ? Widen(logits[target]) : 0.0f;
}

template <typename T>
void RowGradient(int columns, int target, bool counts, float row_max, float sum, float scale,
                 T* logits) {
  if (!counts) {
    std::fill_n(logits, columns, T(0.0f));
    return;
  }
  const bool is_here = target >= 0 && target < columns;
  T* const target_logit = logits + (is_here ? target : 0);
  // In float, before the gradient is rounded: near the end of training the two parts nearly cancel.
  const float target_gradient = scale * (std::exp(Widen(*target_logit) - row_max) / sum - 1.0f);
  ScaledExpInPlace(columns, row_max, scale / sum, logits);
  if (is_here) Narrow(target_gradient, target_logit);
}

}  // namespace

template <typename T>
void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                            const int32_t* targets, const T* logits, float* row_max, float* sums,
                            Stream& /*stream*/) {
  const int columns = vocabulary_end - vocabulary_begin;
  ForPieces(kStatisticsNanoseconds * rows * columns, rows, [=](int64_t row) {
    RowStatistics(columns, targets[row] - vocabulary_begin, logits + row * columns, row_max + row,
                  sums + 2 * row);
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
    RowGradient(columns, targets[row] - vocabulary_begin, targets[row] >= 0, row_max[row],
                sums[2 * row], scale, logits + row * columns);
  });
}

template <typename T>
void CrossEntropyAtOnce(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* targets,
                        const float* gradient_scale, float* row_max, float* sums, T* logits,
                        Stream& /*stream*/) {
  const int columns = vocabulary_end - vocabulary_begin;
  const float scale = *gradient_scale;
  const double nanoseconds = kStatisticsNanoseconds + kGradientNanoseconds;
  ForPieces(nanoseconds * rows * columns, rows, [=](int64_t row) {
    T* logits_row = logits + row * columns;
    const int target = targets[row] - vocabulary_begin;
    RowStatistics(columns, target, logits_row, row_max + row, sums + 2 * row);
    RowGradient(columns, target, targets[row] >= 0, row_max[row], sums[2 * row], scale, logits_row);
  });
}

CONVENE_INSTANTIATE(CrossEntropyStatistics);
CONVENE_INSTANTIATE(CrossEntropyGradient);
CONVENE_INSTANTIATE(CrossEntropyAtOnce);

}  // namespace convene::worker::cpu
