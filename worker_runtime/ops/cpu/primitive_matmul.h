// oneDNN's two ways to multiply matrices: sgemm, and the matmul primitive, which is made once for
// each shape and then only run.
#pragma once

#include <limits>

#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker::cpu {

// op(a) (m, k) times op(b) (k, n); leading dimensions in elements, of the matrices as they stand in
// memory.
struct ProductShape {
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  int m = 0;
  int n = 0;
  int k = 0;
  int lda = 0;
  int ldb = 0;
  int ldc = 0;
};

// Of matrices whose rows lie one behind the other.
constexpr ProductShape DenseProduct(Transpose transpose_a, Transpose transpose_b, int m, int n,
                                    int k) {
  return {.transpose_a = transpose_a,
          .transpose_b = transpose_b,
          .m = m,
          .n = n,
          .k = k,
          .lda = transpose_a == Transpose::kYes ? m : k,
          .ldb = transpose_b == Transpose::kYes ? k : n,
          .ldc = n};
}

// One multiply-add of an fp32 product, by one thread: 0.02 with AVX-512, 0.04 without.
inline constexpr double kNanosecondsOfFloat = 0.02;

// The calling thread's team for a product by oneDNN. `nanoseconds`: of a multiply-add.
LibraryTeam ProductTeam(const ProductShape& shape, double nanoseconds,
                        int most = std::numeric_limits<int>::max());

// c = op(a) op(b) + beta c; beta is 0 or 1. Uses the calling thread's OpenMP team, or that thread
// alone where it is already one of a team.
void Sgemm(const ProductShape& shape, const float* a, const float* b, float beta, float* c);

// Whether oneDNN multiplies bf16 by AMX here. There it shares out the sum over k, and so changes
// its rounding, from 2 threads on (by 1,024 terms where a is transposed, else from 1,152 terms on).
bool MultipliesByAmx();

// c = op(a) op(b), or added to c when beta is 1. In and Out: float and float, BFloat16 and either.
// Uses the calling thread's OpenMP team; what was made is the thread's own. The bits do not depend
// on the number of threads, but for bf16 where MultipliesByAmx(), and where a is transposed, Out is
// BFloat16 and k is above 1024 (no product of a model is such).
template <typename In, typename Out>
void PrimitiveMatMul(const ProductShape& shape, const In* a, const In* b, float beta, Out* c);

}  // namespace convene::worker::cpu
