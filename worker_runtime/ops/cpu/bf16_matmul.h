// The two ways to multiply bf16 matrices on a CPU; MatMul (ops/matmul.h) chooses. Contract as
// there; `shape` is a DenseProduct. Both use the calling thread's OpenMP team, and keep memory of
// the thread's own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/cpu/primitive_matmul.h"

namespace convene::worker::cpu {

// Whether this processor multiplies bf16 itself (AVX512-BF16 or AMX).
bool HasBFloat16Products();

// One multiply-add there, by one thread.
inline constexpr double kNanosecondsOfBFloat16 = 0.01;

// oneDNN's bf16 product: needs AVX-512, and is fast where HasBFloat16Products(). (It gave 48
// GFLOP/s on a Cascade Lake where sgemm gave 174.)
template <typename Out>
void BFloat16MatMul(const ProductShape& shape, const BFloat16* a, const BFloat16* b, float beta,
                    Out* c);

// 8-bit floats in memory, and the number that each of the 256 codes stands for.
struct Float8Numbers {
  const uint8_t* codes;
  const float* of_code;

  friend Float8Numbers operator+(Float8Numbers x, ptrdiff_t places) {
    return {x.codes + places, x.of_code};
  }
};

// Blocks of a and b become fp32, and sgemm multiplies them.
template <typename Out>
void WidenedMatMul(const ProductShape& shape, const BFloat16* a, const BFloat16* b, float beta,
                   Out* c);
template <typename Out>
void WidenedMatMul(const ProductShape& shape, Float8Numbers a, Float8Numbers b, float beta, Out* c);

}  // namespace convene::worker::cpu
