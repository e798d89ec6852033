// Products of few rows by a matrix that is stored output by output, as a model's weights are: the
// newest tokens of some texts. Each weight comes from memory once and serves all rows, so that up
// to some rows a product takes the time of reading its weights.
#pragma once

#include "worker_runtime/ops/cpu/primitive_matmul.h"

namespace convene::worker::cpu {

// Whether the functions below take the shape: up to 16 rows of a, with AVX-512 up to 64 (48 of
// long ones), neither operand turned the other way than in a row by c = a b^T.
bool HasFewRows(const ProductShape& shape);

// c = a b^T + beta c; beta is 0 or 1. A row's bits depend on neither the number of threads nor the
// other rows: its sums run over k in one order. Uses the calling thread's OpenMP team, and memory
// of that thread for rows that are widened, or that lie a bad distance apart. REQUIRES:
// HasFewRows(shape).
template <typename In, typename Out>
void FewRowsMatMul(const ProductShape& shape, const In* a, const In* b, float beta, Out* c);

// The same by the calling thread alone.
template <typename In, typename Out>
void MultiplyFewRows(const ProductShape& shape, const In* a, const In* b, float beta, Out* c);

}  // namespace convene::worker::cpu
