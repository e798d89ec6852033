// Matrix products. All matrices are row-major and dense.
#pragma once

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

enum class Transpose { kNo, kYes };

// c = op(a) op(b) + beta * c, with op(a) (m, k), op(b) (k, n), c (m, n). `a` is stored (m, k), or
// (k, m) when transposed; `b` is stored (k, n), or (n, k) when transposed. beta is 0 (c is never
// read) or 1. No overlap between c and a or b. Sums are made in float.
//
// In, Out: float, float; BFloat16, BFloat16 (activations); BFloat16, float (main gradients, which
// the product itself accumulates).
template <typename In, typename Out>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const In* a,
            const In* b, float beta, Out* c, Stream& stream);

// Whether products from now on, in all threads of this process, give the same bits in every run on
// one machine. On the CPU they always do; on a GPU algorithms are then not chosen by the clock.
void SetDeterministicMatMul(bool is_deterministic);

}  // namespace convene::worker
