// The arithmetic of Muon (Jordan et al. 2024) beside matrix products.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// y = x / max(norm, 1e-7), rounded to T; *sum_of_squares is the norm's square, in the device's
// memory.
template <typename T>
void ScaleToUnit(int64_t count, const float* x, const double* sum_of_squares, T* y, Stream& stream);

// x = a * x + b * y, computed in float and rounded once.
template <typename T>
void Combine(int64_t count, float a, float b, const float* y, T* x, Stream& stream);

}  // namespace convene::worker
