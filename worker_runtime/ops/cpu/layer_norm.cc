#include "worker_runtime/ops/layer_norm.h"

#include <cmath>
#include <cstdint>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/row_sums.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kForwardNanoseconds = 0.22;  // an element
constexpr double kAgainNanoseconds = 0.1;
constexpr double kBackwardNanoseconds = 0.2;
constexpr double kWeightNanoseconds = 0.12;

// The variance comes from a second pass over the row, which lies in the cache: the difference of
// two large sums would lose the digits that a far mean leaves.
template <typename T>
CONVENE_CPU_CLONES void Measure(int columns, const T* x, float epsilon, float* statistics) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < columns; ++i) sum += Widen(x[i]);
  const float mean = sum / static_cast<float>(columns);
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int i = 0; i < columns; ++i) squares += (Widen(x[i]) - mean) * (Widen(x[i]) - mean);
  statistics[0] = mean;
  statistics[1] = 1.0f / std::sqrt(squares / static_cast<float>(columns) + epsilon);
}

template <typename T>
CONVENE_CPU_CLONES void NormalizeRow(int columns, const T* x, const T* weight, const T* bias,
                                     const float* statistics, T* y) {
  const float mean = statistics[0];
  const float inverse = statistics[1];
#pragma omp simd
  for (int i = 0; i < columns; ++i) {
    Narrow((Widen(x[i]) - mean) * inverse * Widen(weight[i]) + Widen(bias[i]), &y[i]);
  }
}

// With n = (x - mean) inverse and g = dy weight: dx += inverse (g - mean(g) - n mean(g n)).
template <typename T>
CONVENE_CPU_CLONES void BackwardRow(int columns, const T* x, const T* weight,
                                    const float* statistics, const T* dy, bool add_to_dx, T* dx) {
  const float mean = statistics[0];
  const float inverse = statistics[1];
  float sum = 0;
  float dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int i = 0; i < columns; ++i) {
    const float g = Widen(dy[i]) * Widen(weight[i]);
    sum += g;
    dot += g * (Widen(x[i]) - mean);
  }
  const float g_mean = sum / static_cast<float>(columns);
  const float projection = dot * inverse * inverse / static_cast<float>(columns);
  if (add_to_dx) {
#pragma omp simd
    for (int i = 0; i < columns; ++i) {
      const float g = Widen(dy[i]) * Widen(weight[i]);
      Narrow(Widen(dx[i]) + inverse * (g - g_mean - projection * (Widen(x[i]) - mean)), &dx[i]);
    }
  } else {
#pragma omp simd
    for (int i = 0; i < columns; ++i) {
      const float g = Widen(dy[i]) * Widen(weight[i]);
      Narrow(inverse * (g - g_mean - projection * (Widen(x[i]) - mean)), &dx[i]);
    }
  }
}

// One block of columns.
template <typename T>
CONVENE_CPU_CLONES void WeightColumns(int rows, int columns, int begin, int count, const T* x,
                                      const float* statistics, const T* dy, bool adds,
                                      float* dweight, float* dbias) {
  float weights[kColumnBlock] = {};
  float biases[kColumnBlock] = {};
  for (int row = 0; row < rows; ++row) {
    const T* x_row = x + static_cast<int64_t>(row) * columns + begin;
    const T* dy_row = dy + static_cast<int64_t>(row) * columns + begin;
    const float mean = statistics[kLayerNormStatistics * row];
    const float inverse = statistics[kLayerNormStatistics * row + 1];
#pragma omp simd
    for (int i = 0; i < count; ++i) {
      weights[i] += Widen(dy_row[i]) * (Widen(x_row[i]) - mean) * inverse;
      biases[i] += Widen(dy_row[i]);
    }
  }
  for (int i = 0; i < count; ++i) {
    dweight[begin + i] = adds ? dweight[begin + i] + weights[i] : weights[i];
    dbias[begin + i] = adds ? dbias[begin + i] + biases[i] : biases[i];
  }
}

}  // namespace

template <typename T>
void LayerNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                      const T* bias, float epsilon, T* sum, T* y, float* statistics,
                      Stream& /*stream*/) {
  const T* const normed = delta == nullptr ? x : sum;
  ForPieces(kForwardNanoseconds * rows * columns, rows, [=](int64_t row) {
    const int64_t offset = row * columns;
    float* const measured = statistics + kLayerNormStatistics * row;
    if (delta != nullptr) AddRow(columns, x + offset, delta + offset, sum + offset);
    Measure(columns, normed + offset, epsilon, measured);
    NormalizeRow(columns, normed + offset, weight, bias, measured, y + offset);
  });
}

template <typename T>
void LayerNormAgain(int rows, int columns, const T* x, const T* weight, const T* bias,
                    const float* statistics, T* y, Stream& /*stream*/) {
  ForPieces(kAgainNanoseconds * rows * columns, rows, [=](int64_t row) {
    const int64_t offset = row * columns;
    NormalizeRow(columns, x + offset, weight, bias, statistics + kLayerNormStatistics * row,
                 y + offset);
  });
}

size_t LayerNormWorkspaceBytes(int /*rows*/, int /*columns*/) { return 0; }

template <typename T>
void LayerNormBackward(int rows, int columns, const T* x, const T* weight, const float* statistics,
                       const T* dy, bool add_to_dx, T* dx, bool adds, float* dweight, float* dbias,
                       const Workspace& /*workspace*/, Stream& /*stream*/) {
  if (rows == 0) return;
  ForPieces(kBackwardNanoseconds * rows * columns, rows, [=](int64_t row) {
    const int64_t offset = row * columns;
    BackwardRow(columns, x + offset, weight, statistics + kLayerNormStatistics * row, dy + offset,
                add_to_dx, dx + offset);
  });
  if (dweight == nullptr) return;
  ForColumnBlocks(kWeightNanoseconds * rows * columns, columns, [=](int begin, int count) {
    WeightColumns(rows, columns, begin, count, x, statistics, dy, adds, dweight, dbias);
  });
}

CONVENE_INSTANTIATE(LayerNormForward);
CONVENE_INSTANTIATE(LayerNormAgain);
CONVENE_INSTANTIATE(LayerNormBackward);

}  // namespace convene::worker::cpu
