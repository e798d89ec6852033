// Matrix products. All matrices are row-major and dense.
#pragma once

#include "worker_runtime/device/stream.h"

namespace convene::worker {

enum class Transpose { kNo, kYes };

// c = op(a) op(b) + beta * c, with op(a) (m, k), op(b) (k, n), c (m, n). `a` is stored (m, k), or
// (k, m) when transposed; `b` is stored (k, n), or (n, k) when transposed. beta 0 never reads c. No
// overlap between c and a or b.
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const float* a,
            const float* b, float beta, float* c, Stream& stream);

}  // namespace convene::worker
