// SwiGLU (Shazeer 2020): y = silu(gate) * up. T: float or BFloat16; arithmetic in float.
#pragma once

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// gate_up: (rows, 2 * width), gate first; y: (rows, width).
template <typename T>
void SwigluForward(int rows, int width, const T* gate_up, T* y, Stream& stream);

// dgate_up: (rows, 2 * width), overwritten; may be gate_up itself.
template <typename T>
void SwigluBackward(int rows, int width, const T* gate_up, const T* dy, T* dgate_up,
                    Stream& stream);

}  // namespace convene::worker
