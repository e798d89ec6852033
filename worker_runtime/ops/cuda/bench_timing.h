// For the benchmarks of ops on a GPU: the time of one launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/wait.h"

namespace convene::worker::cuda {

// Events of a queue, and the time from one to the next.
class EventChain {
 public:
  explicit EventChain(Queue& queue) : queue_(queue) {}
  ~EventChain() {
    for (const cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  EventChain(const EventChain&) = delete;
  EventChain& operator=(const EventChain&) = delete;

  absl::Status Record() {
    cudaEvent_t event = nullptr;
    CONVENE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&event), "cudaEventCreate"));
    events_.push_back(event);
    return CudaStatus(cudaEventRecord(event, queue_.stream()), "cudaEventRecord");
  }
  // Waits for the last one. Errors: the queue's, DeadlineExceeded. REQUIRES: Record() was called.
  absl::StatusOr<std::vector<float>> Milliseconds() const {
    CONVENE_RETURN_IF_ERROR(WaitFor(events_.back(), absl::Minutes(2)));
    CONVENE_RETURN_IF_ERROR(queue_.status());
    std::vector<float> between(events_.size() - 1);
    for (size_t i = 0; i < between.size(); ++i) {
      CONVENE_RETURN_IF_ERROR(CudaStatus(
          cudaEventElapsedTime(&between[i], events_[i], events_[i + 1]), "cudaEventElapsedTime"));
    }
    return between;
  }

 private:
  Queue& queue_;
  std::vector<cudaEvent_t> events_;
};

// The time of one call of `run(i)` in the queue: the median of 25 samples, by CUDA events, after
// calls that are not counted. A sample is as many calls as fill 2 ms (at most 200), beside which an
// event costs nothing. i counts all calls: for buffers that take turns. Errors: EventChain's.
inline absl::StatusOr<double> MedianMilliseconds(Queue& queue,
                                                 const std::function<void(int)>& run) {
  constexpr int kWarmUpCalls = 3;
  constexpr int kSamples = 25;
  constexpr float kSampleMilliseconds = 2;
  constexpr float kCallsMax = 200;
  int calls_done = 0;
  const auto time = [&](int samples, int calls) -> absl::StatusOr<std::vector<float>> {
    EventChain events(queue);
    CONVENE_RETURN_IF_ERROR(events.Record());
    for (int sample = 0; sample < samples; ++sample) {
      for (int call = 0; call < calls; ++call) run(calls_done++);
      CONVENE_RETURN_IF_ERROR(events.Record());
    }
    return events.Milliseconds();
  };
  CONVENE_ASSIGN_OR_RETURN(const std::vector<float> first, time(kWarmUpCalls + 1, 1));
  const float wanted = kSampleMilliseconds / std::max(first.back(), 1e-6f);
  const int calls = static_cast<int>(std::clamp(wanted, 1.0f, kCallsMax));
  CONVENE_ASSIGN_OR_RETURN(std::vector<float> samples, time(kSamples, calls));
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2] / calls;
}

}  // namespace convene::worker::cuda
