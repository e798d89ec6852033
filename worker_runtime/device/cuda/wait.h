// How the host waits for the GPU: never without a deadline.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace convene::worker::cuda {

// By asking, with pauses of 10 to 100 us: cudaEventSynchronize knows no deadline. OK once all that
// the event stands for is done; DeadlineExceeded after `timeout`; Internal with CUDA's words when
// something queued on the device failed.
absl::Status WaitFor(cudaEvent_t event, absl::Duration timeout);

}  // namespace convene::worker::cuda
