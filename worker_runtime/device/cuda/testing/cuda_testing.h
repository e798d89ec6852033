// A queue for tests of ops on a GPU; their arrays are in ops/cuda/testing/kernel_testing.h.
#pragma once

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <memory>

#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/first_error.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
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

}  // namespace convene::worker::cuda::testing
