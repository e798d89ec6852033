#include "worker_runtime/device/cuda/cuda_profile.h"

#include <utility>

#include "absl/time/time.h"
#include "tools/base/check.h"
#include "worker_runtime/device/cuda/wait.h"

namespace convene::worker::cuda {
namespace {

// The longest wait for the work that is queued when the times are asked for: a few steps.
constexpr absl::Duration kTimeout = absl::Minutes(5);
// The host's clock and the GPU's are compared so many times; the shortest round trip counts.
constexpr int kRoundTrips = 8;
// An older anchor is replaced: a float of 250 ms is exact to 15 ns.
constexpr double kAnchorMilliseconds = 250;

}  // namespace

CudaProfile::~CudaProfile() {
  for (const Span& span : spans_) {
    free_events_.push_back(span.begin);
    free_events_.push_back(span.end);
  }
  for (cudaEvent_t event : {pass_.begin, anchor_}) free_events_.push_back(event);
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

void CudaProfile::Begin(const char* op, const OpDetail& detail) {
  if (spans_.size() >= kPending) Collect();
  spans_.push_back({.op = op, .detail = detail, .begin = MakeEvent()});
  Record(spans_.back().begin);
}

void CudaProfile::End() {
  spans_.back().end = MakeEvent();
  Record(spans_.back().end);
}

void CudaProfile::BeginPass(const char* pass, const OpDetail& detail) {
  if (!kept_.is_wanted()) return;
  CONVENE_CHECK(pass_.op == nullptr);
  pass_ = {.op = pass, .detail = detail, .begin = MakeEvent(), .is_pass = true};
  Record(pass_.begin);
}

void CudaProfile::EndPass() {
  if (pass_.op == nullptr) return;
  pass_.end = MakeEvent();
  Record(pass_.end);
  spans_.push_back(std::exchange(pass_, {}));
}

double CudaProfile::MillisecondsBetween(cudaEvent_t begin, cudaEvent_t end) {
  float milliseconds = 0;
  queue_.Report(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
  return milliseconds;
}

void CudaProfile::KeepSpans(size_t most) {
  kept_.set_most(most);
  absl::Duration shortest = absl::InfiniteDuration();
  for (int i = 0; i < kRoundTrips; ++i) {
    cudaEvent_t event = MakeEvent();
    if (event == nullptr) return;  // the queue knows why
    const MonotonicTime before = Clock::Real().Now();
    Record(event);
    queue_.Report(WaitFor(event, kTimeout));
    const absl::Duration trip = Clock::Real().Now() - before;
    if (trip < shortest) {
      shortest = trip;
      anchor_time_ = before + trip / 2;
      std::swap(anchor_, event);
    }
    if (event != nullptr) free_events_.push_back(event);
  }
}

OpSpans CudaProfile::TakeSpans() {
  Collect();
  return kept_.Take();
}

void CudaProfile::Keep(const Span& span) {
  const auto time_of = [this](cudaEvent_t event) {
    return anchor_time_ + absl::Milliseconds(MillisecondsBetween(anchor_, event));
  };
  const OpSpan kept{
      .op = span.op, .detail = span.detail, .begin = time_of(span.begin), .end = time_of(span.end)};
  kept_.Add(kept);
  if (kept.end - anchor_time_ < absl::Milliseconds(kAnchorMilliseconds)) return;
  free_events_.push_back(std::exchange(anchor_, span.end));
  anchor_time_ = kept.end;
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
    queue_.Report(state, "cudaEventQuery");
    const bool is_over = state == cudaSuccess;
    if (!span.is_pass) {
      OpTime& time = TimeOf(span.op, times_);
      time.seconds += is_over ? MillisecondsBetween(span.begin, span.end) * 1e-3 : 0;
      ++time.calls;
    }
    if (is_over && kept_.is_wanted() && anchor_ != nullptr) Keep(span);
    free_events_.push_back(span.begin);
    if (span.end != anchor_) free_events_.push_back(span.end);
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
