// Products of matrices that fit in the cache, for attention: no packing, no threads, no allocation
// (oneDNN's call costs more than such a product).
#pragma once

#include <cstddef>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/simd.h"

namespace convene::worker::cpu {

// Columns of `b` and `c` are counted in whole vectors: pad their rows.
constexpr int RoundUpToVector(int count) { return static_cast<int>(RoundUp(count, kVectorFloats)); }

// Where element (i, j) of `a` stands: a[i * row_stride + j * column_stride], so that a transpose is
// a swap of the strides.
struct BlockView {
  const float* data = nullptr;
  ptrdiff_t row_stride = 0;
  ptrdiff_t column_stride = 1;
};

// c (m, n) = a (m, k) b (k, n), or added to c when `accumulate`. b and c are row-major with the
// given row strides. REQUIRES: n is a multiple of kVectorFloats. No overlap. Sums run over k in
// ascending order.
void BlockProduct(int m, int n, int k, const BlockView& a, const float* b, ptrdiff_t b_stride,
                  bool accumulate, float* c, ptrdiff_t c_stride);

}  // namespace convene::worker::cpu
