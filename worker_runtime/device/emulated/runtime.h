// The functions of the runtime for the emulated libraries (cub, cuBLASLt) and the emulation's own
// tests.
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "worker_runtime/device/emulated/grid.h"

namespace convene::emulated {

// Queues `work` in the stream, or adds it to the graph that the stream captures.
cudaError_t QueueWork(cudaStream_t stream, std::function<void()> work);

// For tests of the emulation: forgets a failed launch, which on a GPU only a new process does.
void ForgetFailure();
// Sets the order of work from now on; before the first call it is OrderFromEnvironment().
void SetOrder(Order order);

}  // namespace convene::emulated
