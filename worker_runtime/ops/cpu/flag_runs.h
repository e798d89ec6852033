// Loops over elements whose parameters have flags (ops/elementwise.h). For code compiled with
// -fopenmp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker::cpu {

// Calls run(first, count, is_decayed) for runs of elements that are all decayed, or all not.
// `nanoseconds`: an element's. Where a run ends depends on the flags and the count alone.
template <typename Run>
void ForFlagRuns(double nanoseconds, int64_t count, const uint8_t* flags, const Run& run) {
  constexpr int64_t kBlocksPerTask = 128;  // 8192 elements
  const int64_t blocks = count / kFlagBlock;
  const int64_t tasks = CeilDivide(blocks, kBlocksPerTask);
  ForPieces(nanoseconds * static_cast<double>(count), tasks, [=](int64_t task) {
    const int64_t task_begin = task * kBlocksPerTask;
    const int64_t task_end = std::min(blocks, task_begin + kBlocksPerTask);
    // Nearly always the whole task.
    for (int64_t begin = task_begin; begin < task_end;) {
      const uint8_t decayed = flags[begin] & kDecayed;
      int64_t end = begin + 1;
      while (end < task_end && (flags[end] & kDecayed) == decayed) ++end;
      run(begin * kFlagBlock, (end - begin) * kFlagBlock, decayed != 0);
      begin = end;
    }
  });
}

}  // namespace convene::worker::cpu
