// What tests of ops on a GPU need: a queue, and arrays that go there and back.
#pragma once

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/first_error.h"
#include "worker_runtime/device/cuda/gpu_testing.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/wait.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker::cuda::testing {

// A queue on GPU 0. REQUIRES: HasGpuOrSkips().
class TestQueue {
 public:
  TestQueue() {
    REQUIRE_CUDA(cudaSetDevice(0));
    absl::StatusOr<std::unique_ptr<Queue>> queue = Queue::Create(0, first_error_);
    REQUIRE_OK(queue);
    queue_ = *std::move(queue);
  }

  Queue& queue() { return *queue_; }
  Stream stream() { return Stream::Cuda(*queue_); }

  // Waits for all that was queued; fails the test on any error.
  void Finish() {
    cudaEvent_t event = nullptr;
    REQUIRE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    REQUIRE_CUDA(cudaEventRecord(event, queue_->stream()));
    REQUIRE_OK(WaitFor(event, absl::Seconds(60)));
    REQUIRE_CUDA(cudaEventDestroy(event));
    REQUIRE_OK(queue_->status());
  }

 private:
  FirstError first_error_;
  std::unique_ptr<Queue> queue_;
};

// `count` elements of T on the GPU, every byte of them 0xff at first: NaN for each floating-point
// type, so that an element that nobody wrote is seen.
template <typename T>
class GpuArray {
 public:
  explicit GpuArray(size_t count) : count_(count) {
    REQUIRE_CUDA(cudaMalloc(&data_, bytes()));
    Poison();
  }
  explicit GpuArray(const std::vector<T>& values) : GpuArray(values.size()) {
    REQUIRE_CUDA(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
    REQUIRE_CUDA(cudaStreamSynchronize(nullptr));  // our queues do not wait for that stream
  }
  ~GpuArray() { cudaFree(data_); }
  GpuArray(const GpuArray&) = delete;
  GpuArray& operator=(const GpuArray&) = delete;

  // Done on return.
  void Poison() {
    REQUIRE_CUDA(cudaMemset(data_, 0xff, bytes()));
    REQUIRE_CUDA(cudaStreamSynchronize(nullptr));
  }
  // After TestQueue::Finish.
  std::vector<T> Download() const {
    std::vector<T> values(count_);
    REQUIRE_CUDA(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

  T* get() const { return data_; }
  size_t count() const { return count_; }

 private:
  size_t bytes() const { return count_ * sizeof(T); }

  const size_t count_;
  T* data_ = nullptr;
};

}  // namespace convene::worker::cuda::testing
