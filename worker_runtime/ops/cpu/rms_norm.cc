#include "worker_runtime/ops/rms_norm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker {
namespace {

constexpr int kParallelElements = 1 << 14;
constexpr int kColumnBlock = 128;

CONVENE_CPU_CLONES void ForwardRow(int columns, const float* x, const float* weight, float epsilon,
                                   float* y, float* inverse_rms) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < columns; ++i) sum += x[i] * x[i];
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(columns) + epsilon);
#pragma omp simd
  for (int i = 0; i < columns; ++i) y[i] = x[i] * inverse * weight[i];
  *inverse_rms = inverse;
}

// With n = x * inverse_rms: dx += inverse_rms * (dy * weight - n * mean(dy * weight * n)).
CONVENE_CPU_CLONES void BackwardRow(int columns, const float* x, const float* weight,
                                    float inverse_rms, const float* dy, float* dx) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int i = 0; i < columns; ++i) dot += dy[i] * weight[i] * x[i];
  const float projection =
      dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(columns);
#pragma omp simd
  for (int i = 0; i < columns; ++i) {
    dx[i] += inverse_rms * (dy[i] * weight[i]) - projection * x[i];
  }
}

// One block of columns over all rows, in order, so that the sum does not depend on the number of
// threads.
CONVENE_CPU_CLONES void WeightColumns(int rows, int columns, int begin, int count, const float* x,
                                      const float* inverse_rms, const float* dy, float* dweight) {
  float sums[kColumnBlock] = {};
  for (int row = 0; row < rows; ++row) {
    const float* x_row = x + static_cast<ptrdiff_t>(row) * columns + begin;
    const float* dy_row = dy + static_cast<ptrdiff_t>(row) * columns + begin;
    const float inverse = inverse_rms[row];
#pragma omp simd
    for (int i = 0; i < count; ++i) sums[i] += dy_row[i] * x_row[i] * inverse;
  }
  for (int i = 0; i < count; ++i) dweight[begin + i] += sums[i];
}

bool IsLarge(int rows, int columns) {
  return static_cast<int64_t>(rows) * columns >= kParallelElements;
}

}  // namespace

void RmsNormForward(int rows, int columns, const float* x, const float* weight, float epsilon,
                    float* y, float* inverse_rms, Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int row = 0; row < rows; ++row) {
    const ptrdiff_t offset = static_cast<ptrdiff_t>(row) * columns;
    ForwardRow(columns, x + offset, weight, epsilon, y + offset, inverse_rms + row);
  }
}

void RmsNormBackward(int rows, int columns, const float* x, const float* weight,
                     const float* inverse_rms, const float* dy, float* dx, float* dweight,
                     Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int row = 0; row < rows; ++row) {
    const ptrdiff_t offset = static_cast<ptrdiff_t>(row) * columns;
    BackwardRow(columns, x + offset, weight, inverse_rms[row], dy + offset, dx + offset);
  }
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int begin = 0; begin < columns; begin += kColumnBlock) {
    WeightColumns(rows, columns, begin, std::min(kColumnBlock, columns - begin), x, inverse_rms, dy,
                  dweight);
  }
}

}  // namespace convene::worker
