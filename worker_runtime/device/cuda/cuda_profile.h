// OpProfile by CUDA events: the time of each op on the GPU, while the host runs ahead.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "tools/base/clock.h"

#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/host_profile.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker::cuda {

// Two events an op. Events are made as they are needed and used again; errors go to the queue.
class CudaProfile final : public OpProfile {
 public:
  // Borrows the queue, which outlives it.
  explicit CudaProfile(Queue& queue) : queue_(queue) {}
  ~CudaProfile() override;

  void Begin(const char* op, const OpDetail& detail) override;
  void End() override;
  void BeginPass(const char* pass, const OpDetail& detail) override;
  void EndPass() override;
  std::vector<OpTime> Times() override;
  void KeepSpans(size_t most) override;
  OpSpans TakeSpans() override;

 private:
  struct Span {
    const char* op = nullptr;
    OpDetail detail;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    bool is_pass = false;
  };
  // Spans that may wait for the GPU before those that are done are added up.
  static constexpr size_t kPending = 4096;

  cudaEvent_t MakeEvent();
  void Record(cudaEvent_t event);
  // Adds up spans from the front, in order, as far as the GPU has come.
  void Collect();
  // `span` is over.
  void Keep(const Span& span);
  double MillisecondsBetween(cudaEvent_t begin, cudaEvent_t end);

  Queue& queue_;
  std::deque<Span> spans_;
  Span pass_;  // that is open; without a name: none
  SpanKeeper kept_;
  // An event that has a time by the host's clock. It is never far in the past, because CUDA tells
  // the time between two events as a float.
  cudaEvent_t anchor_ = nullptr;
  MonotonicTime anchor_time_;
  std::vector<cudaEvent_t> free_events_;
  std::vector<OpTime> times_;
};

}  // namespace convene::worker::cuda
