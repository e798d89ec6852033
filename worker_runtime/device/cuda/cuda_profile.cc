#include "worker_runtime/device/cuda/cuda_profile.h"

#include "absl/time/time.h"
#include "worker_runtime/device/cuda/wait.h"
#include "worker_runtime/device/host_profile.h"

namespace convene::worker::cuda {
namespace {

// The longest wait for the work that is queued when the times are asked for: a few steps.
constexpr absl::Duration kTimeout = absl::Minutes(5);

}  // namespace

CudaProfile::~CudaProfile() {
  for (const Span& span : spans_) {
    free_events_.push_back(span.begin);
    free_events_.push_back(span.end);
  }
  for (cudaEvent_t event : free_events_) {
    if (event != nullptr) queue_.Report(cudaEventDestroy(event), "cudaEventDestroy");
  }
}

cudaEvent_t CudaProfile::MakeEvent() {
  if (!free_events_.empty()) {
    cudaEvent_t event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  queue_.Report(cudaEventCreate(&event), "cudaEventCreate");
  return event;
}

void CudaProfile::Record(cudaEvent_t event) {
  if (event != nullptr) {
    queue_.Report(cudaEventRecord(event, queue_.stream()), "cudaEventRecord");
  }
}

void CudaProfile::Begin(const char* op) {
  if (spans_.size() >= kPending) Collect();
  spans_.push_back({.op = op, .begin = MakeEvent()});
  Record(spans_.back().begin);
}

void CudaProfile::End() {
  spans_.back().end = MakeEvent();
  Record(spans_.back().end);
}

void CudaProfile::Collect() {
  while (!spans_.empty()) {
    const Span& span = spans_.front();
    if (span.begin == nullptr || span.end == nullptr) return;
    const cudaError_t state = cudaEventQuery(span.end);
    if (state == cudaErrorNotReady) {
      (void)cudaGetLastError();  // "not ready" is no error of the next launch
      return;
    }
    float milliseconds = 0;
    queue_.Report(state, "cudaEventQuery");
    if (state == cudaSuccess) {
      queue_.Report(cudaEventElapsedTime(&milliseconds, span.begin, span.end),
                    "cudaEventElapsedTime");
    }
    OpTime& time = TimeOf(span.op, times_);
    time.seconds += milliseconds * 1e-3;
    ++time.calls;
    free_events_.push_back(span.begin);
    free_events_.push_back(span.end);
    spans_.pop_front();
  }
}

std::vector<OpTime> CudaProfile::Times() {
  if (!spans_.empty() && spans_.back().end != nullptr) {
    queue_.Report(WaitFor(spans_.back().end, kTimeout));
  }
  Collect();
  return times_;
}

}  // namespace convene::worker::cuda
