// NCCL and CUDA's events without a GPU, for tests: played by this library, whose definitions must
// come before the real ones (link with -z muldefs).
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "tools/base/mutex.h"

namespace convene::worker::testing {

// A stand-in for the NCCL library and the GPU: it follows the test's settings, and records each
// call. One for the process. Thread-safe. Communicators and events are numbers, from 1 on, cast to
// pointers.
class PlayedNccl {
 public:
  // Resets it to the state at the start of the process.
  static PlayedNccl& Reset();
  static PlayedNccl& OfProcess();

  // Recorded events stay pending.
  void SetGpuIsSlow(bool slow);
  void SetCapturing();
  // The state that a communicator reports from now on. A window that is registered while it is
  // ncclInProgress is written when the communicator is aborted.
  void SetState(uintptr_t communicator, ncclResult_t state);
  // The final state of communicators that are made from now on; ncclInProgress: they are never
  // ready.
  void SetEndOfInit(ncclResult_t state);
  // The result of the communicator's next registration.
  void SetRegistration(uintptr_t communicator, ncclResult_t result, bool gives_handle);
  // The results of the next ncclMemAlloc and of the next cudaMalloc.
  void SetAllocation(ncclResult_t by_nccl, cudaError_t plain);
  // "grouped abort 1", in order.
  std::vector<std::string> Calls();
  // How often the communicator was asked for its state.
  int Asks(uintptr_t communicator);

  // Called by the stand-in functions.
  ncclResult_t Record(const std::string& deed, ncclComm_t communicator);
  ncclResult_t Init(const std::string& deed, ncclComm_t* made);
  ncclResult_t Ask(ncclComm_t communicator, ncclResult_t* state);
  ncclResult_t Register(const std::string& deed, ncclComm_t communicator, void* data,
                        void** handle);
  ncclResult_t RegisterWindow(ncclComm_t communicator, void* data, ncclWindow_t* window);
  ncclResult_t Abort(ncclComm_t communicator);
  ncclResult_t Allocate(void** data, size_t bytes);
  cudaError_t AllocatePlain(void** data, size_t bytes);
  void Group(int step);
  void RecordEvent(cudaEvent_t event);
  bool IsPending(cudaEvent_t event);
  bool IsCapturing();

 private:
  struct Registration {
    ncclResult_t result;
    bool gives_handle;
  };

  void Write(const std::string& deed, ncclComm_t communicator)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  uintptr_t made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<cudaEvent_t> pending_ ABSL_GUARDED_BY(mutex_);
  bool gpu_is_slow_ ABSL_GUARDED_BY(mutex_) = false;
  bool capturing_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<ncclComm_t, ncclResult_t> states_ ABSL_GUARDED_BY(mutex_);
  std::map<ncclComm_t, int> asks_ ABSL_GUARDED_BY(mutex_);
  std::map<ncclComm_t, int> asks_left_ ABSL_GUARDED_BY(mutex_);  // while it is made
  ncclResult_t end_of_init_ ABSL_GUARDED_BY(mutex_) = ncclSuccess;
  std::map<ncclComm_t, Registration> registrations_ ABSL_GUARDED_BY(mutex_);
  std::map<ncclComm_t, ncclWindow_t*> unmade_windows_ ABSL_GUARDED_BY(mutex_);
  ncclResult_t next_allocation_ ABSL_GUARDED_BY(mutex_) = ncclSuccess;
  cudaError_t next_plain_allocation_ ABSL_GUARDED_BY(mutex_) = cudaSuccess;
  int group_depth_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker::testing
