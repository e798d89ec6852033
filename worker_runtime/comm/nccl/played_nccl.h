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
#include "worker_runtime/comm/nccl/library.h"

namespace convene::worker::testing {

// A stand-in for the NCCL library and the GPU: it does as the test says, and records each call. One
// for the process. Thread-safe. Communicators and events are numbers, from 1 on, cast to pointers.
class PlayedNccl {
 public:
  // As at the start of the process.
  static PlayedNccl& Reset();
  static PlayedNccl& OfProcess();

  // A library that revokes, shrinks and grows.
  static NcclLibrary Library();

  // Recorded events stay pending.
  void SetGpuIsSlow(bool slow);
  void SetCapturing();
  // The state that a communicator reports from now on.
  void SetState(uintptr_t communicator, ncclResult_t state);
  // How whatever this call starts ("init", "revoke", "shrink", "grow") ends, after some asking;
  // ncclInProgress: never.
  void SetEndOf(const std::string& call, ncclResult_t state);
  // Of the communicator's next registration.
  void SetRegistration(uintptr_t communicator, ncclResult_t result, bool gives_handle);
  // "grouped abort 1", in order.
  std::vector<std::string> Calls();

  // For the played functions.
  ncclResult_t Record(const std::string& deed, ncclComm_t communicator);
  // Something under way in `communicator`; `made`, if not null, comes to point at a new one then.
  ncclResult_t Begin(const std::string& call, ncclComm_t communicator, ncclComm_t* made);
  ncclResult_t MakeNow(const std::string& call, ncclComm_t* made);
  ncclResult_t Ask(ncclComm_t communicator, ncclResult_t* state);
  ncclResult_t Register(ncclComm_t communicator, void* data, void** handle);
  void Group(int step);
  void RecordEvent(cudaEvent_t event);
  bool IsPending(cudaEvent_t event);
  bool IsCapturing();

 private:
  struct Work {
    int asks_left = 0;
    ncclResult_t end = ncclSuccess;
    ncclComm_t* made = nullptr;
  };
  struct Registration {
    ncclResult_t result;
    bool gives_handle;
  };

  void Write(const std::string& deed, ncclComm_t communicator)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartWork(const std::string& call, ncclComm_t communicator, ncclComm_t* made)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  uintptr_t made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<cudaEvent_t> pending_ ABSL_GUARDED_BY(mutex_);
  bool gpu_is_slow_ ABSL_GUARDED_BY(mutex_) = false;
  bool capturing_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<ncclComm_t, ncclResult_t> states_ ABSL_GUARDED_BY(mutex_);
  std::map<ncclComm_t, Work> work_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ncclResult_t> ends_ ABSL_GUARDED_BY(mutex_);
  std::map<ncclComm_t, Registration> registrations_ ABSL_GUARDED_BY(mutex_);
  int group_depth_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker::testing
