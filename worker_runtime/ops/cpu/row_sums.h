// Sums of rows, and over rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/thread_count.h"

namespace convene::worker::cpu {

inline constexpr int kColumnBlock = 128;

// sum = x + y, `count` elements. `sum` may be x or y. T: float or BFloat16.
template <typename T>
void AddRow(int64_t count, const T* x, const T* y, T* sum);

// Calls run(begin, count) for each block of at most kColumnBlock columns. One thread takes a block,
// over all rows in order, so that sums over rows do not depend on the number of threads.
template <typename Run>
void ForColumnBlocks(double nanoseconds, int columns, const Run& run) {
  ForPieces(nanoseconds, CeilDivide(columns, kColumnBlock), [&](int64_t block) {
    const int begin = static_cast<int>(block) * kColumnBlock;
    run(begin, std::min(kColumnBlock, columns - begin));
  });
}

}  // namespace convene::worker::cpu
