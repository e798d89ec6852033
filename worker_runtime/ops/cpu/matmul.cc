#include "worker_runtime/ops/matmul.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "tools/base/check.h"

namespace convene::worker {
namespace {

// oneDNN 2.6 shares out the sum over k, and so changes its rounding, when c has few rows and there
// are many threads: seen from 8 threads on, up to 128 rows and never from 160 on.
constexpr int kFewRows = 192;
constexpr int kThreadsForFewRows = 4;

// Sets the number of threads of this thread's next parallel regions while it lives.
class ScopedThreadCount {
 public:
  explicit ScopedThreadCount(int count) : before_(omp_get_max_threads()) {
    omp_set_num_threads(std::min(count, before_));
  }
  ~ScopedThreadCount() { omp_set_num_threads(before_); }
  ScopedThreadCount(const ScopedThreadCount&) = delete;
  ScopedThreadCount& operator=(const ScopedThreadCount&) = delete;

 private:
  const int before_;
};

}  // namespace

void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const float* a,
            const float* b, float beta, float* c, Stream& /*stream*/) {
  if (m == 0 || n == 0) return;
  const ScopedThreadCount thread_count(m < kFewRows ? kThreadsForFewRows : omp_get_max_threads());
  const bool a_is_transposed = transpose_a == Transpose::kYes;
  const bool b_is_transposed = transpose_b == Transpose::kYes;
  const dnnl_status_t status =
      dnnl_sgemm(a_is_transposed ? 'T' : 'N', b_is_transposed ? 'T' : 'N', m, n, k, 1.0f, a,
                 a_is_transposed ? m : k, b, b_is_transposed ? k : n, beta, c, n);
  CONVENE_CHECK(status == dnnl_success);
}

}  // namespace convene::worker
