#include "worker_runtime/ops/matmul.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "tools/base/check.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {

template <typename In, typename Out>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const In* a,
            const In* b, float beta, Out* c, Stream& stream) {
  CONVENE_CHECK(beta == 0.0f || beta == 1.0f);
  Queue& queue = stream.queue();
  if (m == 0 || n == 0) return;
  if (k == 0) {  // an empty sum, of which cuBLASLt knows nothing
    if (beta == 1.0f) return;
    queue.Report(cudaMemsetAsync(c, 0, size_t{1} * m * n * sizeof(Out), queue.stream()), "matmul");
    return;
  }
  const int left_free = stream.left_free();
  queue.plans<MatMulPlans>().Run(
      {.transpose_a = transpose_a == Transpose::kYes,
       .transpose_b = transpose_b == Transpose::kYes,
       .accumulate = beta == 1.0f,
       .m = m,
       .n = n,
       .k = k,
       .in = kDTypeOf<In>,
       .out = kDTypeOf<Out>,
       .alignment_a = AlignmentBytes(a),
       .alignment_b = AlignmentBytes(b),
       .alignment_c = AlignmentBytes(c),
       .multiprocessors = left_free == 0 ? 0 : std::max(queue.multiprocessors() - left_free, 1)},
      a, b, c);
}

CONVENE_INSTANTIATE_PRODUCT(MatMul);

}  // namespace convene::worker::cuda
