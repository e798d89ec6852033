#include "worker_runtime/ops/bias.h"

#include <cstdint>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/row_sums.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kForwardNanoseconds = 0.08;  // an element
constexpr double kBackwardNanoseconds = 0.06;

// One block of columns.
template <typename T>
CONVENE_CPU_CLONES void SumColumns(int rows, int columns, int begin, int count, const T* dy,
                                   bool adds, float* dbias) {
  float sums[kColumnBlock] = {};
  for (int row = 0; row < rows; ++row) {
    const T* dy_row = dy + static_cast<int64_t>(row) * columns + begin;
#pragma omp simd
    for (int i = 0; i < count; ++i) sums[i] += Widen(dy_row[i]);
  }
  for (int i = 0; i < count; ++i) dbias[begin + i] = adds ? dbias[begin + i] + sums[i] : sums[i];
}

}  // namespace

template <typename T>
void AddBias(int rows, int columns, const T* bias, T* y, Stream& /*stream*/) {
  ForPieces(kForwardNanoseconds * rows * columns, rows,
            [=](int64_t row) { AddRow(columns, y + row * columns, bias, y + row * columns); });
}

size_t BiasWorkspaceBytes(int /*rows*/, int /*columns*/) { return 0; }

template <typename T>
void BiasBackward(int rows, int columns, const T* dy, bool adds, float* dbias,
                  const Workspace& /*workspace*/, Stream& /*stream*/) {
  if (rows == 0) return;
  ForColumnBlocks(kBackwardNanoseconds * rows * columns, columns, [=](int begin, int count) {
    SumColumns(rows, columns, begin, count, dy, adds, dbias);
  });
}

CONVENE_INSTANTIATE(AddBias);
CONVENE_INSTANTIATE(BiasBackward);

}  // namespace convene::worker::cpu
