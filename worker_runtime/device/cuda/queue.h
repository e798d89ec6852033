// A CUDA stream with the things that its ops need: library handles, the products' scratch, the
// state that an op keeps between calls, and the first error.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/device/cuda/first_error.h"

namespace convene::worker::cuda {

// One thread at a time. Belongs to the device on which it was made; that device must be current in
// the calling thread.
class Queue {
 public:
  // For the current device. `priority` as in cudaStreamCreateWithPriority. Internal with the
  // library's words. `first_error` outlives the queue.
  static absl::StatusOr<std::unique_ptr<Queue>> Create(int priority, FirstError& first_error);
  // Work that is still queued runs on; its memory must live until then.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  cudaStream_t stream() const { return stream_; }
  int multiprocessors() const { return multiprocessors_; }

  // Made at the first call (never inside a captured step: the first step is not captured); null
  // after an error, which is reported.
  cublasLtHandle_t cublaslt();
  cudnnHandle_t cudnn();
  // kMatMulWorkspaceBytes of device memory, for cuBLASLt alone.
  static constexpr size_t kMatMulWorkspaceBytes = size_t{32} << 20;
  void* matmul_workspace();

  // The one Plans of this queue, where an op keeps chosen algorithms and built graphs: made as
  // Plans(queue) at the first call, destroyed with the queue, before the handles above.
  template <typename Plans>
  Plans& plans() {
    static constexpr char kKey = 0;  // its address names the type
    if (void* found = FindPlans(&kKey)) return *static_cast<Plans*>(found);
    Plans* made = new Plans(*this);
    KeepPlans(&kKey, {made, [](void* plans) { delete static_cast<Plans*>(plans); }});
    return *made;
  }

  // Every launch and library call here reports its result. `what` names the op
  // ("rms_norm_forward"). The first error is remembered; later work may still be queued, but its
  // results do not count.
  void Report(cudaError_t error, const char* what);
  void Report(cublasStatus_t status, const char* what);
  void Report(cudnnStatus_t status, const char* what);
  void Report(const absl::Status& status);
  // Call it after a launch by <<<>>>.
  void ReportLaunch(const char* what) { Report(cudaGetLastError(), what); }
  // From now on reports go to `aside`, or, when it is null, to the device's first error again. For
  // work that is only captured: its failure leaves the device as it was.
  void ReportAside(FirstError* aside) { aside_ = aside; }
  absl::Status status() const { return first_error_.status(); }

 private:
  struct Libraries;
  using OwnedPlans = std::unique_ptr<void, void (*)(void*)>;
  Queue(FirstError& first_error, cudaStream_t stream, int multiprocessors);
  void* FindPlans(const void* key) const;
  void KeepPlans(const void* key, OwnedPlans plans);

  FirstError& first_error_;
  FirstError* aside_ = nullptr;
  const cudaStream_t stream_;
  const int multiprocessors_;
  const std::unique_ptr<Libraries> libraries_;
};

// "`what`: cudaErrorMemoryAllocation: out of memory" as Internal; OK for cudaSuccess.
absl::Status CudaStatus(cudaError_t error, const char* what);

}  // namespace convene::worker::cuda
