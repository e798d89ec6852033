// How many threads a product may use so that its bits do not depend on how many there are.
#pragma once

#include <omp.h>

#include <algorithm>

namespace convene::worker::cpu {

// Limits this thread's next parallel regions while it lives. oneDNN 2.6 shares out the sum over k,
// and so changes its rounding, when c has few rows and there are many threads: seen from 8 threads
// on, up to 128 rows and never from 160 on.
class ScopedThreadCount {
 public:
  // `rows`: of c.
  explicit ScopedThreadCount(int rows) : before_(omp_get_max_threads()) {
    if (rows < kFewRows) omp_set_num_threads(std::min(kThreadsForFewRows, before_));
  }
  ~ScopedThreadCount() { omp_set_num_threads(before_); }
  ScopedThreadCount(const ScopedThreadCount&) = delete;
  ScopedThreadCount& operator=(const ScopedThreadCount&) = delete;

 private:
  static constexpr int kFewRows = 192;
  static constexpr int kThreadsForFewRows = 4;

  const int before_;
};

}  // namespace convene::worker::cpu
