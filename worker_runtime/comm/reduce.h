// PURE. The arithmetic of reductions, in one place: a sum is made in rank order, element by
// element; fp32, fp64 and whole numbers in their own type, bf16 in fp32 and rounded once, at the
// end.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// result[i] = (..(source[0][i] op source[1][i]) op ..) op source[last][i], for i < count, where all
// hold elements of `dtype`, at its alignment. A NaN in any source makes the result NaN, also for
// kMax. `result` may be one of the sources; otherwise nothing overlaps. REQUIRES: at least one
// source.
void ReduceInOrder(absl::Span<const void* const> sources, size_t count, DType dtype, ReduceOp op,
                   void* result);

}  // namespace convene::worker
