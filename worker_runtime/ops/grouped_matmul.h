// Matrix products of groups of rows, each with a matrix of its own. All matrices are row-major and
// dense. T: float or BFloat16; sums are made in float.
//
// begin: groups + 1 rising row numbers in the host's memory; the rows [begin[g], begin[g + 1]),
// perhaps none, are group g's. It stays in place until the stream has run the op. Each call may
// have other numbers: nothing is kept for them.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/matmul.h"

namespace convene::worker {

// c: (rows, n): the rows of group g become a's, (rows, k), times op(b_g), + beta times what they
// were. b: (groups, n, k) where transpose_b is kYes, else (groups, k, n). beta is 0 (c is never
// read) or 1. REQUIRES: k > 0.
template <typename T>
void GroupedMatMul(Transpose transpose_b, absl::Span<const int32_t> begin, int n, int k, const T* a,
                   const T* b, float beta, T* c, Stream& stream);

// c: (groups, m, n): c_g = a_g^T b_g + beta c_g, of a: (rows, m) and b: (rows, n). beta is 0 (c is
// never read) or 1. A group without rows: zeros, or c_g as it is.
template <typename T>
void GroupedWeightGradient(absl::Span<const int32_t> begin, int m, int n, const T* a, const T* b,
                           float beta, float* c, Stream& stream);

}  // namespace convene::worker
