// PURE. The arithmetic of reductions, in one place: a sum is made in rank order, element by
// element, in the element's own type.
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"

namespace convene::worker {

// result[i] = (..(source[0][i] op source[1][i]) op ..) op source[last][i], for i < count. A NaN in
// any source makes the result NaN, also for kMax. `result` may be one of the sources; otherwise
// nothing overlaps. REQUIRES: at least one source.
void ReduceInOrder(absl::Span<const float* const> sources, size_t count, ReduceOp op,
                   float* result);
void ReduceInOrder(absl::Span<const double* const> sources, size_t count, ReduceOp op,
                   double* result);

}  // namespace convene::worker
