// A CUDA stream with what ops queued in it need: library handles, the products' scratch, and the
// first error.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace convene::worker::cuda {

class MatMulPlans;     // ops/cuda/matmul: chosen algorithms
class AttentionPlans;  // ops/cuda/attention: built cuDNN graphs

// The first error of all queues of a device. Thread-safe.
class FirstError;

// One thread at a time. Belongs to the device on which it was made; that device must be current in
// the calling thread.
class Queue {
 public:
  // For the current device. `priority` as in cudaStreamCreateWithPriority. Internal with the
  // library's words. `first_error` outlives the queue.
  static absl::StatusOr<std::unique_ptr<Queue>> Create(int priority, FirstError& first_error);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }

  // Made at the first call (never inside a captured step: the first step is not captured); null
  // after an error, which is reported.
  cublasLtHandle_t cublaslt();
  cudnnHandle_t cudnn();
  MatMulPlans& matmul_plans();
  AttentionPlans& attention_plans();
  // kMatMulWorkspaceBytes of device memory, for cuBLASLt alone.
  static constexpr size_t kMatMulWorkspaceBytes = size_t{32} << 20;
  void* matmul_workspace();

  // What every launch and library call here reports. `what` names the op ("rms_norm_forward").
  // Anything but success is remembered (the first one stays); later work may still be queued, to no
  // effect that counts.
  void Report(cudaError_t error, const char* what);
  void Report(cublasStatus_t status, const char* what);
  void Report(cudnnStatus_t status, const char* what);
  void Report(const absl::Status& status);
  // After <<<>>>.
  void ReportLaunch(const char* what) { Report(cudaGetLastError(), what); }
  absl::Status status() const;

 private:
  struct Libraries;
  Queue(FirstError& first_error, cudaStream_t stream, int multiprocessors);

  FirstError& first_error_;
  const cudaStream_t stream_;
  const int multiprocessors_;
  std::unique_ptr<Libraries> libraries_;
};

}  // namespace convene::worker::cuda
