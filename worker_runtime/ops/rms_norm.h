// RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + epsilon) * weight, over the last
// axis.
#pragma once

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// x, y: (rows, columns); weight: (columns); inverse_rms: (rows), kept for the backward pass. y may
// be x.
void RmsNormForward(int rows, int columns, const float* x, const float* weight, float epsilon,
                    float* y, float* inverse_rms, Stream& stream);

// dx: (rows, columns), added to (the residual stream's gradient is already there); dweight:
// (columns), added to.
void RmsNormBackward(int rows, int columns, const float* x, const float* weight,
                     const float* inverse_rms, const float* dy, float* dx, float* dweight,
                     Stream& stream);

}  // namespace convene::worker
