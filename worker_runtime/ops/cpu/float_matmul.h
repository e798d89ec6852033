// Products of fp32 matrices by the faster of oneDNN's two ways that rounds alike for any number of
// threads.
#pragma once

#include "worker_runtime/ops/cpu/primitive_matmul.h"

namespace convene::worker::cpu {

// Whether the matmul primitive beats sgemm on a processor with AVX-512. PURE, and blind to the
// number of threads: the two round differently.
bool PrefersPrimitive(const ProductShape& shape);

// c = op(a) op(b) + beta c; beta is 0 or 1. The same bits for any number of threads (tried: 1 to
// 64).
void FloatMatMul(const ProductShape& shape, const float* a, const float* b, float beta, float* c);

}  // namespace convene::worker::cpu
