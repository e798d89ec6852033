// Initial weights that do not depend on the layout: element i of tensor "name" has the same value
// on every grid of ranks.
#pragma once

#include <cstdint>

#include "worker_runtime/model/parameters.h"

namespace convene::worker {

// Fills `target` with the slice's elements [first, first + count), row-major. Deviates come
// from Philox4x32-10 (Salmon et al. 2011), keyed by the seed and the tensor's name, counted by the
// element's place in the global tensor, normal ones through Box and Muller 1958. Runs on OpenMP's
// threads; no value depends on how many those are. REQUIRES: first + count <= slice.count().
void InitializeParameter(const ParameterSlice& slice, uint64_t seed, int64_t first, int64_t count,
                         float* target);

}  // namespace convene::worker
