// How the host waits for the GPU: never without a deadline.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace convene::worker::cuda {

// Asks with pauses of 10 to 100 us, since cudaEventSynchronize knows no deadline. OK once the work
// before the event is done; DeadlineExceeded after `timeout`; Internal with CUDA's words when work
// on the device failed.
absl::Status WaitFor(cudaEvent_t event, absl::Duration timeout);

}  // namespace convene::worker::cuda
