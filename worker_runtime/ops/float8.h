// Products of 8-bit floats: tensors are measured, rounded with a scale of their own, and
// multiplied.
#pragma once

#include <cstdint>

#include "worker_runtime/device/float8.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// *largest = the largest magnitude among x; 0 for none, a NaN where there is one.
template <typename T>
void LargestMagnitude(int64_t count, const T* x, float* largest, Stream& stream);

// Rounds x (rows, columns) times Float8Scale(dtype, *largest) to `dtype`, kE4M3 or kE5M2: into
// codes (rows, columns), and turned round into turned (columns, rows). Either may be null. *inverse
// = 1 / the scale. REQUIRES: rows and columns are multiples of 16; codes and turned begin at
// multiples of 16 bytes, and do not overlap.
template <typename T>
void QuantizeFloat8(int rows, int columns, const T* x, DType dtype, const float* largest,
                    float* inverse, uint8_t* codes, uint8_t* turned, Stream& stream);

// An operand: numbers of kE4M3 or kE5M2, each of which stands for itself times *inverse.
struct Float8Operand {
  const uint8_t* codes = nullptr;
  const float* inverse = nullptr;
  DType dtype = DType::kE4M3;
};

// How exact the sums over k are. kFast: on Hopper, tensor cores then keep about 14 bits of a sum
// between two steps of theirs; as the peers do in forward passes alone (Transformer Engine,
// use_split_accumulator). A CPU sums in float in any case.
enum class Float8Sums { kExact, kFast };

// c (m, n) = a (m, k) b^T + beta * c, with b stored (n, k): the one form that Hopper's tensor cores
// take. Sums in float; beta is 0 (c is never read) or 1. T: of c. REQUIRES: m, n and k are
// multiples of 16; a and b are not both kE5M2 (cuBLASLt has no such product).
template <typename T>
void Float8MatMul(int m, int n, int k, const Float8Operand& a, const Float8Operand& b,
                  Float8Sums sums, float beta, T* c, Stream& stream);

}  // namespace convene::worker
