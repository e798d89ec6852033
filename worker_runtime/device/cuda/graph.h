// Work of a queue as a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/device.h"

namespace convene::worker::cuda {

// A graph that is destroyed while it runs is kept by CUDA until it is done (Driver API,
// cuGraphExecDestroy).
class CudaGraph final : public Graph {
 public:
  // Device::Capture. Only this thread's calls are held to the rules of a capture (ThreadLocal):
  // NCCL's threads allocate and look at events whenever they like, and an op of ours that does so
  // is an error, as it should be.
  static absl::StatusOr<std::unique_ptr<Graph>> Capture(Queue& queue,
                                                        absl::FunctionRef<absl::Status()> work);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Errors go to the queue.
  void Launch(Queue& queue);

 private:
  CudaGraph(cudaGraphExec_t executable, Queue& queue) : executable_(executable), queue_(queue) {}
  static absl::StatusOr<std::unique_ptr<Graph>> TryCapture(Queue& queue,
                                                           absl::FunctionRef<absl::Status()> work);

  const cudaGraphExec_t executable_;
  Queue& queue_;  // told when it cannot be destroyed
};

}  // namespace convene::worker::cuda
