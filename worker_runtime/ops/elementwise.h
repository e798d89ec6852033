// Sums, scales and norms over flat arrays.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// y += x.
void AddInPlace(int64_t count, const float* x, float* y, Stream& stream);

// x *= factor.
void ScaleInPlace(int64_t count, float factor, float* x, Stream& stream);

// Sum of x^2, accumulated in double in a fixed order: the same bits for the same input.
double SumOfSquares(int64_t count, const float* x, Stream& stream);

}  // namespace convene::worker
