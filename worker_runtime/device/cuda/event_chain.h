// The time of queued work, by CUDA events.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/wait.h"

namespace convene::worker::cuda {

// Events of a queue, and the time from one to the next. Borrows the queue.
class EventChain {
 public:
  explicit EventChain(Queue& queue) : queue_(queue) {}
  ~EventChain() {
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  EventChain(const EventChain&) = delete;
  EventChain& operator=(const EventChain&) = delete;

  // The next event: "all that is queued by now".
  absl::Status Record() {
    if (recorded_ == events_.size()) {
      cudaEvent_t event = nullptr;
      CONVENE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
      events_.push_back(event);
    }
    return CudaStatus(cudaEventRecord(events_[recorded_++], queue_.stream()), "cudaEventRecord");
  }
  // Waits for the last event, at most `patience` (DeadlineExceeded), and gives the time between
  // neighbours. A new chain begins, of the same events. Other errors: CUDA's. REQUIRES: Record()
  // was called.
  absl::StatusOr<std::vector<float>> Milliseconds(absl::Duration patience) {
    CONVENE_RETURN_IF_ERROR(WaitFor(events_[recorded_ - 1], patience));
    std::vector<float> between(recorded_ - 1);
    for (size_t i = 0; i < between.size(); ++i) {
      CONVENE_RETURN_IF_ERROR(CudaStatus(
          cudaEventElapsedTime(&between[i], events_[i], events_[i + 1]), "cudaEventElapsedTime"));
    }
    recorded_ = 0;
    return between;
  }

 private:
  Queue& queue_;
  std::vector<cudaEvent_t> events_;
  size_t recorded_ = 0;
};

}  // namespace convene::worker::cuda
