// One kind of product as cuBLASLt knows it: descriptors, candidates, launches.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "worker_runtime/ops/cuda/matmul/plan_choice.h"

namespace convene::worker::cuda {

// cuBLASLt counts columns first, so it is asked for c^T = op(b)^T op(a)^T: its A is our b, its B is
// our a, its m and n are our n and m, and no bytes move.
class MatMulProblem {
 public:
  // REQUIRES: m, n, k > 0. Check status() before anything else.
  explicit MatMulProblem(const MatMulKey& key);
  // The descriptors' addresses are handed to the library.
  MatMulProblem(const MatMulProblem&) = delete;
  MatMulProblem& operator=(const MatMulProblem&) = delete;

  // The result of making the descriptors.
  cublasStatus_t status() const { return status_; }

  // Where the device finds the numbers by which 8-bit operands are multiplied
  // (Float8Operand::inverse), from the next call of Candidates or Launch on.
  cublasStatus_t SetInverses(const float* of_a, const float* of_b);

  // At most `count` algorithms that can run in `workspace_bytes`, the library's favourite first;
  // none, with the library's answer in `status`, when it knows none.
  std::vector<cublasLtMatmulHeuristicResult_t> Candidates(cublasLtHandle_t handle, int count,
                                                          size_t workspace_bytes,
                                                          cublasStatus_t& status) const;

  // Whether an algorithm that was found for a product of other sizes does this one too.
  bool Takes(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
             size_t workspace_bytes) const;

  // d = op(a) op(b) + beta * c, beta by the key. `d` may be `c`.
  cublasStatus_t Launch(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                        const void* a, const void* b, const void* c, void* d, void* workspace,
                        size_t workspace_bytes, cudaStream_t stream) const;

 private:
  cublasStatus_t MakeDescriptors();

  const MatMulKey key_;
  // The library fills these in place; its functions take pointers that are not const.
  mutable cublasLtMatmulDescOpaque_t operation_;
  mutable cublasLtMatrixLayoutOpaque_t layout_a_;
  mutable cublasLtMatrixLayoutOpaque_t layout_b_;
  mutable cublasLtMatrixLayoutOpaque_t layout_c_;
  cublasStatus_t status_;
};

}  // namespace convene::worker::cuda
