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
#include "worker_runtime/ops/float8.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {
namespace {

// How many multiprocessors a product of the stream may use; 0: all.
int MultiprocessorsFor(const Stream& stream) {
  const int left_free = stream.left_free();
  return left_free == 0 ? 0 : std::max(stream.queue().multiprocessors() - left_free, 1);
}

}  // namespace

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
  queue.plans<MatMulPlans>().Run({.transpose_a = transpose_a == Transpose::kYes,
                                  .transpose_b = transpose_b == Transpose::kYes,
                                  .accumulate = beta == 1.0f,
                                  .m = m,
                                  .n = n,
                                  .k = k,
                                  .in_a = kDTypeOf<In>,
                                  .in_b = kDTypeOf<In>,
                                  .out = kDTypeOf<Out>,
                                  .alignment_a = AlignmentBytes(a),
                                  .alignment_b = AlignmentBytes(b),
                                  .alignment_c = AlignmentBytes(c),
                                  .multiprocessors = MultiprocessorsFor(stream)},
                                 {.a = a, .b = b, .c = c});
}

template <typename T>
void Float8MatMul(int m, int n, int k, const Float8Operand& a, const Float8Operand& b,
                  Float8Sums sums, float beta, T* c, Stream& stream) {
  CONVENE_CHECK(beta == 0.0f || beta == 1.0f);
  CONVENE_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0);
  if (m == 0 || n == 0) return;
  CONVENE_CHECK(k > 0);
  stream.queue().plans<MatMulPlans>().Run(
      {.transpose_b = true,
       .accumulate = beta == 1.0f,
       .m = m,
       .n = n,
       .k = k,
       .in_a = a.dtype,
       .in_b = b.dtype,
       .out = kDTypeOf<T>,
       .fast_sums = sums == Float8Sums::kFast,
       .alignment_a = AlignmentBytes(a.codes),
       .alignment_b = AlignmentBytes(b.codes),
       .alignment_c = AlignmentBytes(c),
       .multiprocessors = MultiprocessorsFor(stream)},
      {.a = a.codes, .b = b.codes, .c = c, .inverse_a = a.inverse, .inverse_b = b.inverse});
}

CONVENE_INSTANTIATE_PRODUCT(MatMul);
CONVENE_INSTANTIATE(Float8MatMul);

}  // namespace convene::worker::cuda
