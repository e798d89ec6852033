#include "worker_runtime/ops/rms_norm.h"

#include <cmath>
#include <cstddef>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/row_sums.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kForwardNanoseconds = 0.18;  // an element
constexpr double kAgainNanoseconds = 0.08;
constexpr double kBackwardNanoseconds = 0.17;
constexpr double kWeightNanoseconds = 0.08;

template <typename T>
CONVENE_CPU_CLONES void NormalizeRow(int columns, const T* x, const T* weight, float offset,
                                     float inverse, T* y) {
#pragma omp simd
  for (int i = 0; i < columns; ++i)
    Narrow(Widen(x[i]) * inverse * (Widen(weight[i]) + offset), &y[i]);
}

template <typename T>
CONVENE_CPU_CLONES float InverseRmsOfRow(int columns, const T* x, float epsilon) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < columns; ++i) sum += Widen(x[i]) * Widen(x[i]);
  return 1.0f / std::sqrt(sum / static_cast<float>(columns) + epsilon);
}

// With n = x * inverse_rms: dx += inverse_rms * (dy * weight - n * mean(dy * weight * n)).
template <typename T>
CONVENE_CPU_CLONES void BackwardRow(int columns, const T* x, const T* weight, float offset,
                                    float inverse_rms, const T* dy, bool add_to_dx, T* dx) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int i = 0; i < columns; ++i) dot += Widen(dy[i]) * (Widen(weight[i]) + offset) * Widen(x[i]);
  const float projection =
      dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(columns);
  if (add_to_dx) {
#pragma omp simd
    for (int i = 0; i < columns; ++i) {
      Narrow(Widen(dx[i]) + (inverse_rms * (Widen(dy[i]) * (Widen(weight[i]) + offset)) -
                             projection * Widen(x[i])),
             &dx[i]);
    }
  } else {
#pragma omp simd
    for (int i = 0; i < columns; ++i) {
      Narrow(inverse_rms * (Widen(dy[i]) * (Widen(weight[i]) + offset)) - projection * Widen(x[i]),
             &dx[i]);
    }
  }
}

// One block of columns.
template <typename T>
CONVENE_CPU_CLONES void WeightColumns(int rows, int columns, int begin, int count, const T* x,
                                      const float* inverse_rms, const T* dy, bool add_to_dweight,
                                      float* dweight) {
  float sums[kColumnBlock] = {};
  for (int row = 0; row < rows; ++row) {
    const T* x_row = x + static_cast<ptrdiff_t>(row) * columns + begin;
    const T* dy_row = dy + static_cast<ptrdiff_t>(row) * columns + begin;
    const float inverse = inverse_rms[row];
#pragma omp simd
    for (int i = 0; i < count; ++i) sums[i] += Widen(dy_row[i]) * Widen(x_row[i]) * inverse;
  }
  for (int i = 0; i < count; ++i) {
    dweight[begin + i] = add_to_dweight ? dweight[begin + i] + sums[i] : sums[i];
  }
}

}  // namespace

template <typename T>
void RmsNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                    float offset, float epsilon, T* sum, T* y, float* inverse_rms,
                    Stream& /*stream*/) {
  const T* const normed = delta == nullptr ? x : sum;
  ForPieces(kForwardNanoseconds * rows * columns, rows, [=](int64_t row) {
    const int64_t begin = row * columns;
    if (delta != nullptr) AddRow(columns, x + begin, delta + begin, sum + begin);
    inverse_rms[row] = InverseRmsOfRow(columns, normed + begin, epsilon);
    NormalizeRow(columns, normed + begin, weight, offset, inverse_rms[row], y + begin);
  });
}

template <typename T>
void RmsNormAgain(int rows, int columns, const T* x, const T* weight, float offset,
                  const float* inverse_rms, T* y, Stream& /*stream*/) {
  ForPieces(kAgainNanoseconds * rows * columns, rows, [=](int64_t row) {
    const int64_t begin = row * columns;
    NormalizeRow(columns, x + begin, weight, offset, inverse_rms[row], y + begin);
  });
}

size_t RmsNormWorkspaceBytes(int /*rows*/, int /*columns*/) { return 0; }

template <typename T>
void RmsNormBackward(int rows, int columns, const T* x, const T* weight, float offset,
                     const float* inverse_rms, const T* dy, bool add_to_dx, T* dx,
                     bool add_to_dweight, float* dweight, const Workspace& /*workspace*/,
                     Stream& /*stream*/) {
  if (rows == 0) return;
  ForPieces(kBackwardNanoseconds * rows * columns, rows, [=](int64_t row) {
    const int64_t begin = row * columns;
    BackwardRow(columns, x + begin, weight, offset, inverse_rms[row], dy + begin, add_to_dx,
                dx + begin);
  });
  if (dweight == nullptr) return;
  ForColumnBlocks(kWeightNanoseconds * rows * columns, columns, [=](int begin, int count) {
    WeightColumns(rows, columns, begin, count, x, inverse_rms, dy, add_to_dweight, dweight);
  });
}

CONVENE_INSTANTIATE(RmsNormForward);
CONVENE_INSTANTIATE(RmsNormAgain);
CONVENE_INSTANTIATE(RmsNormBackward);

}  // namespace convene::worker::cpu
