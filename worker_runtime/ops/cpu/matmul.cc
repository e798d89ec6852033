#include "worker_runtime/ops/matmul.h"

#include <dnnl.hpp>

#include <type_traits>

#include "tools/base/check.h"
#include "worker_runtime/ops/cpu/bf16_matmul.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/thread_count.h"

namespace convene::worker::cpu {
template <typename In, typename Out>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const In* a,
            const In* b, float beta, Out* c, Stream& /*stream*/) {
  if (m == 0 || n == 0) return;
  if constexpr (std::is_same_v<In, float>) {
    const ScopedThreadCount thread_count(m);
    const bool a_is_transposed = transpose_a == Transpose::kYes;
    const bool b_is_transposed = transpose_b == Transpose::kYes;
    const dnnl_status_t status =
        dnnl_sgemm(a_is_transposed ? 'T' : 'N', b_is_transposed ? 'T' : 'N', m, n, k, 1.0f, a,
                   a_is_transposed ? m : k, b, b_is_transposed ? k : n, beta, c, n);
    CONVENE_CHECK(status == dnnl_success);
  } else if (HasBFloat16Products()) {
    BFloat16MatMul(transpose_a, transpose_b, m, n, k, a, b, beta, c);
  } else {
    WidenedMatMul(transpose_a, transpose_b, m, n, k, a, b, beta, c);
  }
}

template void MatMul(Transpose, Transpose, int, int, int, const float*, const float*, float, float*,
                     Stream&);
template void MatMul(Transpose, Transpose, int, int, int, const BFloat16*, const BFloat16*, float,
                     BFloat16*, Stream&);
template void MatMul(Transpose, Transpose, int, int, int, const BFloat16*, const BFloat16*, float,
                     float*, Stream&);

}  // namespace convene::worker::cpu
