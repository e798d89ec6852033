#include "worker_runtime/ops/cuda/matmul/problem.h"

#include <cstdint>

namespace convene::worker::cuda {
namespace {

cudaDataType_t LibraryType(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return CUDA_R_16BF;
    case DType::kE4M3:
      return CUDA_R_8F_E4M3;
    case DType::kE5M2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

// How partial sums over slices of k ("split-K") may come together. They never go through an output
// of bfloat16, since sums are made in float. Where the bits must be the same each time, only the
// separate, ordered pass adds them.
uint32_t ReductionSchemes(const MatMulKey& key) {
  if (!MaySplit(key)) return CUBLASLT_REDUCTION_SCHEME_NONE;
  if (key.mode == MatMulMode::kDeterministic || key.out != DType::kFloat32) {
    return CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  }
  return CUBLASLT_REDUCTION_SCHEME_MASK;
}

#define RETURN_IF_FAILED(expression)                                    \
  do {                                                                  \
    const cublasStatus_t convene_status = (expression);                 \
    if (convene_status != CUBLAS_STATUS_SUCCESS) return convene_status; \
  } while (false)

class Preference {
 public:
  explicit Preference(cublasStatus_t& status) : status_(status) {
    status_ = cublasLtMatmulPreferenceInit(&preference_);
  }
  template <typename Value>
  void Set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    if (status_ != CUBLAS_STATUS_SUCCESS) return;
    status_ = cublasLtMatmulPreferenceSetAttribute(&preference_, attribute, &value, sizeof(value));
  }
  cublasLtMatmulPreference_t get() { return &preference_; }

 private:
  cublasStatus_t& status_;
  cublasLtMatmulPreferenceOpaque_t preference_;
};

}  // namespace

MatMulProblem::MatMulProblem(const MatMulKey& key) : key_(key), status_(MakeDescriptors()) {}

cublasStatus_t MatMulProblem::MakeDescriptors() {
  const int64_t m = key_.m;
  const int64_t n = key_.n;
  const int64_t k = key_.k;
  const cudaDataType_t out = LibraryType(key_.out);
  // 32F, without FAST_TF32: fp32 products are the oracle.
  RETURN_IF_FAILED(cublasLtMatmulDescInit(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const int32_t transpose_left = key_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const int32_t transpose_right = key_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  RETURN_IF_FAILED(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transpose_left, sizeof(transpose_left)));
  RETURN_IF_FAILED(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_TRANSB,
                                                  &transpose_right, sizeof(transpose_right)));
  if (key_.multiprocessors > 0) {
    const int32_t target = key_.multiprocessors;
    RETURN_IF_FAILED(cublasLtMatmulDescSetAttribute(
        &operation_, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &target, sizeof(target)));
  }
  if (key_.fast_sums) {
    const int8_t fast = 1;
    RETURN_IF_FAILED(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                                                    &fast, sizeof(fast)));
  }
  // As stored, columns first: the rows of such a layout are our columns.
  const int64_t b_columns = key_.transpose_b ? k : n;
  const int64_t b_rows = key_.transpose_b ? n : k;
  const int64_t a_columns = key_.transpose_a ? m : k;
  const int64_t a_rows = key_.transpose_a ? k : m;
  RETURN_IF_FAILED(
      cublasLtMatrixLayoutInit(&layout_a_, LibraryType(key_.in_b), b_columns, b_rows, b_columns));
  RETURN_IF_FAILED(
      cublasLtMatrixLayoutInit(&layout_b_, LibraryType(key_.in_a), a_columns, a_rows, a_columns));
  return cublasLtMatrixLayoutInit(&layout_c_, out, n, m, n);
}

cublasStatus_t MatMulProblem::SetInverses(const float* of_a, const float* of_b) {
  RETURN_IF_FAILED(cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                                  &of_b, sizeof(of_b)));
  return cublasLtMatmulDescSetAttribute(&operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &of_a,
                                        sizeof(of_a));
}

std::vector<cublasLtMatmulHeuristicResult_t> MatMulProblem::Candidates(
    cublasLtHandle_t handle, int count, size_t workspace_bytes, cublasStatus_t& status) const {
  Preference preference(status);
  preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace_bytes});
  preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, ReductionSchemes(key_));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                 static_cast<uint32_t>(key_.alignment_b));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                 static_cast<uint32_t>(key_.alignment_a));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                 static_cast<uint32_t>(key_.alignment_c));
  preference.Set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                 static_cast<uint32_t>(key_.alignment_c));
  if (status != CUBLAS_STATUS_SUCCESS) return {};
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(count));
  int found_count = 0;
  status = cublasLtMatmulAlgoGetHeuristic(handle, &operation_, &layout_a_, &layout_b_, &layout_c_,
                                          &layout_c_, preference.get(), count, found.data(),
                                          &found_count);
  if (status != CUBLAS_STATUS_SUCCESS) return {};
  found.resize(static_cast<size_t>(found_count));
  std::erase_if(found, [](const cublasLtMatmulHeuristicResult_t& candidate) {
    return candidate.state != CUBLAS_STATUS_SUCCESS;
  });
  if (found.empty()) status = CUBLAS_STATUS_NOT_SUPPORTED;
  return found;
}

bool MatMulProblem::Takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                          size_t workspace_bytes) const {
  cublasLtMatmulHeuristicResult_t needs = {};
  return cublasLtMatmulAlgoCheck(handle, &operation_, &layout_a_, &layout_b_, &layout_c_,
                                 &layout_c_, &algorithm, &needs) == CUBLAS_STATUS_SUCCESS &&
         needs.workspaceSize <= workspace_bytes;
}

cublasStatus_t MatMulProblem::Launch(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                                     const void* a, const void* b, const void* c, void* d,
                                     void* workspace, size_t workspace_bytes,
                                     cudaStream_t stream) const {
  const float one = 1.0f;
  const float beta = key_.accumulate ? 1.0f : 0.0f;
  return cublasLtMatmul(handle, &operation_, &one, b, &layout_a_, a, &layout_b_, &beta, c,
                        &layout_c_, d, &layout_c_, &algorithm, workspace, workspace_bytes, stream);
}

}  // namespace convene::worker::cuda
