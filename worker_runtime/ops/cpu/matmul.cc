#include "worker_runtime/ops/matmul.h"

#include <dnnl.h>

#include "tools/base/check.h"

namespace convene::worker {

void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const float* a,
            const float* b, float beta, float* c, Stream& /*stream*/) {
  if (m == 0 || n == 0) return;
  const bool a_is_transposed = transpose_a == Transpose::kYes;
  const bool b_is_transposed = transpose_b == Transpose::kYes;
  const dnnl_status_t status =
      dnnl_sgemm(a_is_transposed ? 'T' : 'N', b_is_transposed ? 'T' : 'N', m, n, k, 1.0f, a,
                 a_is_transposed ? m : k, b, b_is_transposed ? k : n, beta, c, n);
  CONVENE_CHECK(status == dnnl_success);
}

}  // namespace convene::worker
