// SwiGLU (Shazeer 2020): y = silu(gate) * up.
#pragma once

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// gate_up: (rows, 2 * width), gate first; y: (rows, width).
void SwigluForward(int rows, int width, const float* gate_up, float* y, Stream& stream);

// dgate_up: (rows, 2 * width), overwritten; may be gate_up itself.
void SwigluBackward(int rows, int width, const float* gate_up, const float* dy, float* dgate_up,
                    Stream& stream);

}  // namespace convene::worker
