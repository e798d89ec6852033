#include "worker_runtime/ops/matmul.h"

#include <type_traits>

#include "worker_runtime/ops/cpu/bf16_matmul.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/few_rows_matmul.h"
#include "worker_runtime/ops/cpu/float_matmul.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {

template <typename In, typename Out>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const In* a,
            const In* b, float beta, Out* c, Stream& /*stream*/) {
  if (m == 0 || n == 0) return;
  const ProductShape shape = DenseProduct(transpose_a, transpose_b, m, n, k);
  if (HasFewRows(shape)) {
    FewRowsMatMul(shape, a, b, beta, c);
  } else if constexpr (std::is_same_v<In, float>) {
    FloatMatMul(shape, a, b, beta, c);
  } else if (HasBFloat16Products()) {
    BFloat16MatMul(shape, a, b, beta, c);
  } else {
    WidenedMatMul(shape, a, b, beta, c);
  }
}

CONVENE_INSTANTIATE_PRODUCT(MatMul);

}  // namespace convene::worker::cpu
