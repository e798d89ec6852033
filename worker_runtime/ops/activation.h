// Activations: they stand between the two products of a feed-forward network. T: float or BFloat16;
// arithmetic in float.
#pragma once

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/kinds.h"

namespace convene::worker {

// x: (rows, ActivationInputs * width), gates before ups; y: (rows, width).
template <typename T>
void ActivationForward(Activation activation, int rows, int width, const T* x, T* y,
                       Stream& stream);

// dx: as x, overwritten; may be x itself.
template <typename T>
void ActivationBackward(Activation activation, int rows, int width, const T* x, const T* dy, T* dx,
                        Stream& stream);

}  // namespace convene::worker
