// OpProfile by CUDA events: the time of each op on the GPU, while the host runs ahead.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker::cuda {

// Two events an op. Events are made as they are needed and used again; errors go to the queue.
class CudaProfile final : public OpProfile {
 public:
  // Borrows the queue, which outlives it.
  explicit CudaProfile(Queue& queue) : queue_(queue) {}
  ~CudaProfile() override;

  void Begin(const char* op) override;
  void End() override;
  std::vector<OpTime> Times() override;

 private:
  struct Span {
    const char* op = nullptr;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };
  // Spans that may wait for the GPU before those that are done are added up.
  static constexpr size_t kPending = 4096;

  cudaEvent_t MakeEvent();
  void Record(cudaEvent_t event);
  // Adds up spans from the front, in order, as far as the GPU has come.
  void Collect();

  Queue& queue_;
  std::deque<Span> spans_;
  std::vector<cudaEvent_t> free_events_;
  std::vector<OpTime> times_;
};

}  // namespace convene::worker::cuda
