#include "worker_runtime/ops/grouped_matmul.h"

#include <cstddef>

#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cuda {

template <typename T>
void GroupedMatMul(Transpose transpose_b, absl::Span<const int32_t> begin, int n, int k, const T* a,
                   const T* b, T* c, Stream& stream) {
  for (size_t group = 0; group + 1 < begin.size(); ++group) {
    const ptrdiff_t first = begin[group];
    cuda::MatMul(Transpose::kNo, transpose_b, begin[group + 1] - begin[group], n, k, a + first * k,
                 b + static_cast<ptrdiff_t>(group) * n * k, 0.0f, c + first * n, stream);
  }
}

template <typename T>
void GroupedWeightGradient(absl::Span<const int32_t> begin, int m, int n, const T* a, const T* b,
                           float beta, float* c, Stream& stream) {
  for (size_t group = 0; group + 1 < begin.size(); ++group) {
    const ptrdiff_t first = begin[group];
    cuda::MatMul(Transpose::kYes, Transpose::kNo, m, n, begin[group + 1] - begin[group],
                 a + first * m, b + first * n, beta, c + static_cast<ptrdiff_t>(group) * m * n,
                 stream);
  }
}

CONVENE_INSTANTIATE(GroupedMatMul);
CONVENE_INSTANTIATE(GroupedWeightGradient);

}  // namespace convene::worker::cuda
