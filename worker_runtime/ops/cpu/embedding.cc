#include "worker_runtime/ops/embedding.h"

#include <algorithm>
#include <cstddef>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/row_sums.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kForwardNanoseconds = 0.05;  // an element

}  // namespace

template <typename T>
void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const T* table, bool adds, T* y, Stream& /*stream*/) {
  ForPieces(kForwardNanoseconds * rows * columns, rows, [=](int64_t row) {
    T* y_row = y + row * columns;
    const int token = tokens[row];
    const bool is_here = token >= vocabulary_begin && token < vocabulary_end;
    const T* from = table + (is_here ? int64_t{token} - vocabulary_begin : 0) * columns;
    if (is_here && adds) {
      AddRow(columns, y_row, from, y_row);
    } else if (is_here) {
      std::copy_n(from, columns, y_row);
    } else if (!adds) {
      std::fill_n(y_row, columns, T(0.0f));
    }
  });
}

size_t EmbeddingWorkspaceBytes(int /*rows*/, int /*columns*/) { return 0; }

template <typename T>
void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const T* dy, float* dtable,
                       const Workspace& /*workspace*/, Stream& /*stream*/) {
  // One thread: it takes less than a thousandth of a step, and two were 2 to 4 times as slow,
  // whether they shared columns or tokens. (Two cores of an AMD EPYC; what one core adds to lies
  // next to what the other one adds to.)
  for (int row = 0; row < rows; ++row) {
    const int token = tokens[row];
    if (token < vocabulary_begin || token >= vocabulary_end) continue;
    const T* source = dy + static_cast<ptrdiff_t>(row) * columns;
    float* sum = dtable + static_cast<ptrdiff_t>(token - vocabulary_begin) * columns;
#pragma omp simd
    for (int i = 0; i < columns; ++i) sum[i] += Widen(source[i]);
  }
}

CONVENE_INSTANTIATE(EmbeddingForward);
CONVENE_INSTANTIATE(EmbeddingBackward);

}  // namespace convene::worker::cpu
