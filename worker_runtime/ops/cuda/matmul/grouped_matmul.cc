#include "worker_runtime/ops/grouped_matmul.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>
#include <vector>

#include "tools/base/check.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/carried_pointers.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/router.h"

namespace convene::worker::cuda {
namespace {

constexpr size_t kGroupsMax = kRouterExpertsMax;

// cuBLAS for a queue's grouped products, which cuBLASLt has not. Belongs to the queue:
// queue.plans<GroupedProducts>(). Made by the first such product, and so never in a captured step.
class GroupedProducts {
 public:
  explicit GroupedProducts(Queue& queue) : queue_(queue) {
    queue_.Report(cublasCreate(&handle_), "cublasCreate");
    if (handle_ == nullptr) return;
    queue_.Report(cublasSetStream(handle_, queue_.stream()), "cublasSetStream");
    // Partial sums stay in float, as MatMul's do.
    queue_.Report(cublasSetMathMode(handle_, static_cast<cublasMath_t>(
                                                 CUBLAS_DEFAULT_MATH |
                                                 CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)),
                  "cublasSetMathMode");
    queue_.Report(cudaMalloc(reinterpret_cast<void**>(&pointers_), 3 * kGroupsMax * sizeof(void*)),
                  "cudaMalloc of grouped products' addresses");
  }
  ~GroupedProducts() {
    if (pointers_ != nullptr) queue_.Report(cudaFree(pointers_), "cudaFree");
    if (handle_ != nullptr) queue_.Report(cublasDestroy(handle_), "cublasDestroy");
  }
  GroupedProducts(const GroupedProducts&) = delete;
  GroupedProducts& operator=(const GroupedProducts&) = delete;

  template <typename T>
  void Run(Transpose transpose_b, absl::Span<const int32_t> begin, int n, int k, const T* a,
           const T* b, float beta, T* c, Stream& stream) {
    if (handle_ == nullptr || pointers_ == nullptr) return;
    rows_.clear();
    for (std::vector<const void*>* operand : {&a_, &b_, &c_}) operand->clear();
    for (size_t group = 0; group + 1 < begin.size(); ++group) {
      const ptrdiff_t first = begin[group];
      if (begin[group + 1] == first) continue;
      rows_.push_back(begin[group + 1] - begin[group]);
      a_.push_back(a + first * k);
      b_.push_back(b + static_cast<ptrdiff_t>(group) * n * k);
      c_.push_back(c + first * n);
    }
    const size_t count = rows_.size();
    if (count == 0) return;
    a_.insert(a_.end(), b_.begin(), b_.end());
    a_.insert(a_.end(), c_.begin(), c_.end());
    StorePointers(a_, pointers_, stream);
    // cuBLAS counts columns first, so it is asked for c^T = op(b)^T a^T, as in problem.h.
    const bool transposes = transpose_b == Transpose::kYes;
    left_.assign(count, transposes ? CUBLAS_OP_T : CUBLAS_OP_N);
    right_.assign(count, CUBLAS_OP_N);
    widths_.assign(count, n);
    depths_.assign(count, k);
    sizes_.assign(count, 1);
    ones_.assign(count, 1.0f);
    betas_.assign(count, beta);
    constexpr cudaDataType_t kType = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16BF;
    const int* const strides_b = transposes ? depths_.data() : widths_.data();
    queue_.Report(
        cublasGemmGroupedBatchedEx(
            handle_, left_.data(), right_.data(), widths_.data(), rows_.data(), depths_.data(),
            ones_.data(), pointers_ + count, kType, strides_b, pointers_, kType, depths_.data(),
            betas_.data(), const_cast<void* const*>(pointers_ + 2 * count), kType, widths_.data(),
            static_cast<int>(count), sizes_.data(), CUBLAS_COMPUTE_32F),
        "grouped matmul: cublasGemmGroupedBatchedEx");
  }

 private:
  Queue& queue_;
  cublasHandle_t handle_ = nullptr;
  const void** pointers_ = nullptr;  // in the GPU's memory: of a, of b, of c
  // Of each group with rows, as cuBLAS wants them. They keep their memory.
  std::vector<const void*> a_, b_, c_;
  std::vector<cublasOperation_t> left_, right_;
  std::vector<int> rows_, widths_, depths_, sizes_;
  std::vector<float> ones_, betas_;
};

// Whether cublasGemmGroupedBatchedEx takes these addresses, wherever a group begins. In bfloat16 it
// wants multiples of 16 bytes where k elements take such a multiple, and else of 4 where they take
// one of 4 (its documentation). It cannot check what lies in the GPU's memory: its kernel would
// fail, and with it all later work of the process.
template <typename T>
bool IsAlignedForGroups(int n, int k, const T* a, const T* b, const T* c) {
  if (std::is_same_v<T, float>) return true;
  const size_t k_bytes = k * sizeof(T);
  const size_t wanted = k_bytes % 16 == 0 ? 16 : k_bytes % 4 == 0 ? 4 : 1;
  return n * sizeof(T) % wanted == 0 && AlignmentBytes(a) % wanted == 0 &&
         AlignmentBytes(b) % wanted == 0 && AlignmentBytes(c) % wanted == 0;
}

}  // namespace

template <typename T>
void GroupedMatMul(Transpose transpose_b, absl::Span<const int32_t> begin, int n, int k, const T* a,
                   const T* b, float beta, T* c, Stream& stream) {
  CONVENE_CHECK(!begin.empty() && begin.size() - 1 <= kGroupsMax && k > 0 &&
                (beta == 0.0f || beta == 1.0f));
  Queue& queue = stream.queue();
  if (IsAlignedForGroups(n, k, a, b, c)) {
    queue.plans<GroupedProducts>().Run(transpose_b, begin, n, k, a, b, beta, c, stream);
    return;
  }
  for (size_t group = 0; group + 1 < begin.size(); ++group) {
    const ptrdiff_t first = begin[group];
    const int rows = begin[group + 1] - begin[group];
    if (rows == 0) continue;
    const T* const its_a = a + first * k;
    const T* const its_b = b + static_cast<ptrdiff_t>(group) * n * k;
    T* const its_c = c + first * n;
    queue.plans<MatMulPlans>().RunRows({.transpose_b = transpose_b == Transpose::kYes,
                                        .accumulate = beta == 1.0f,
                                        .m = rows,
                                        .n = n,
                                        .k = k,
                                        .in_a = kDTypeOf<T>,
                                        .in_b = kDTypeOf<T>,
                                        .out = kDTypeOf<T>,
                                        .alignment_a = AlignmentBytes(its_a),
                                        .alignment_b = AlignmentBytes(its_b),
                                        .alignment_c = AlignmentBytes(its_c)},
                                       &MatMulKey::m, {.a = its_a, .b = its_b, .c = its_c});
  }
}

// Group after group by cuBLASLt: grouped products of cuBLAS have no float sums of bfloat16 rows.
template <typename T>
void GroupedWeightGradient(absl::Span<const int32_t> begin, int m, int n, const T* a, const T* b,
                           float beta, float* c, Stream& stream) {
  CONVENE_CHECK(!begin.empty() && (beta == 0.0f || beta == 1.0f));
  Queue& queue = stream.queue();
  const size_t matrix = size_t{1} * m * n;
  for (size_t group = 0; group + 1 < begin.size(); ++group) {
    const ptrdiff_t first = begin[group];
    const int rows = begin[group + 1] - begin[group];
    float* const its_c = c + group * matrix;
    if (rows > 0) {
      queue.plans<MatMulPlans>().RunRows({.transpose_a = true,
                                          .accumulate = beta == 1.0f,
                                          .m = m,
                                          .n = n,
                                          .k = rows,
                                          .in_a = kDTypeOf<T>,
                                          .in_b = kDTypeOf<T>,
                                          .out = DType::kFloat32,
                                          .alignment_a = AlignmentBytes(a + first * m),
                                          .alignment_b = AlignmentBytes(b + first * n),
                                          .alignment_c = AlignmentBytes(its_c)},
                                         &MatMulKey::k,
                                         {.a = a + first * m, .b = b + first * n, .c = its_c});
    } else if (beta == 0.0f) {
      queue.Report(cudaMemsetAsync(its_c, 0, matrix * sizeof(float), queue.stream()),
                   "grouped weight gradient");
    }
  }
}

CONVENE_INSTANTIATE(GroupedMatMul);
CONVENE_INSTANTIATE(GroupedWeightGradient);

}  // namespace convene::worker::cuda
