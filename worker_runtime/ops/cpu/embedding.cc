#include "worker_runtime/ops/embedding.h"

#include <algorithm>
#include <cstddef>

namespace convene::worker {
namespace {

constexpr int64_t kParallelElements = 1 << 16;
constexpr int kColumnBlock = 128;

bool IsLarge(int rows, int columns) {
  return static_cast<int64_t>(rows) * columns >= kParallelElements;
}

}  // namespace

void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const float* table, float* y, Stream& /*stream*/) {
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int row = 0; row < rows; ++row) {
    float* y_row = y + static_cast<ptrdiff_t>(row) * columns;
    const int token = tokens[row];
    if (token >= vocabulary_begin && token < vocabulary_end) {
      std::copy_n(table + static_cast<ptrdiff_t>(token - vocabulary_begin) * columns, columns,
                  y_row);
    } else {
      std::fill_n(y_row, columns, 0.0f);
    }
  }
}

void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const float* dy, float* dtable, Stream& /*stream*/) {
  // Threads share the columns, not the rows: each element's sum keeps the order of `tokens`.
#pragma omp parallel for schedule(static) if (IsLarge(rows, columns))
  for (int begin = 0; begin < columns; begin += kColumnBlock) {
    const int count = std::min(kColumnBlock, columns - begin);
    for (int row = 0; row < rows; ++row) {
      const int token = tokens[row];
      if (token < vocabulary_begin || token >= vocabulary_end) continue;
      const float* source = dy + static_cast<ptrdiff_t>(row) * columns + begin;
      float* sum = dtable + static_cast<ptrdiff_t>(token - vocabulary_begin) * columns + begin;
#pragma omp simd
      for (int i = 0; i < count; ++i) sum[i] += source[i];
    }
  }
}

}  // namespace convene::worker
