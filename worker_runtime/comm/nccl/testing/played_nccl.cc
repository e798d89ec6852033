#include "worker_runtime/comm/nccl/testing/played_nccl.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace convene::worker::testing {
namespace {

// A caller is told "in progress" so often.
constexpr int kAsks = 3;

// The pointer is never followed.
ncclComm_t CommunicatorOf(uintptr_t number) {
  return reinterpret_cast<ncclComm_t>(number);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

PlayedNccl& PlayedNccl::OfProcess() {
  static PlayedNccl& played = *new PlayedNccl;
  return played;
}

PlayedNccl& PlayedNccl::Reset() {
  PlayedNccl& played = OfProcess();
  MutexLock lock(&played.mutex_);
  played.made_ = 0;
  played.pending_.clear();
  played.gpu_is_slow_ = false;
  played.capturing_ = false;
  played.states_.clear();
  played.asks_.clear();
  played.asks_left_.clear();
  played.end_of_init_ = ncclSuccess;
  played.registrations_.clear();
  played.unmade_windows_.clear();
  played.next_allocation_ = ncclSuccess;
  played.next_plain_allocation_ = cudaSuccess;
  played.calls_.clear();
  return played;
}

void PlayedNccl::SetGpuIsSlow(bool slow) {
  MutexLock lock(&mutex_);
  gpu_is_slow_ = slow;
  if (!slow) pending_.clear();
}

void PlayedNccl::SetCapturing() {
  MutexLock lock(&mutex_);
  capturing_ = true;
}

void PlayedNccl::SetState(uintptr_t communicator, ncclResult_t state) {
  MutexLock lock(&mutex_);
  states_[CommunicatorOf(communicator)] = state;
}

void PlayedNccl::SetEndOfInit(ncclResult_t state) {
  MutexLock lock(&mutex_);
  end_of_init_ = state;
}

void PlayedNccl::SetRegistration(uintptr_t communicator, ncclResult_t result, bool gives_handle) {
  MutexLock lock(&mutex_);
  registrations_[CommunicatorOf(communicator)] = {result, gives_handle};
}

void PlayedNccl::SetAllocation(ncclResult_t by_nccl, cudaError_t plain) {
  MutexLock lock(&mutex_);
  next_allocation_ = by_nccl;
  next_plain_allocation_ = plain;
}

std::vector<std::string> PlayedNccl::Calls() {
  MutexLock lock(&mutex_);
  return calls_;
}

int PlayedNccl::Asks(uintptr_t communicator) {
  MutexLock lock(&mutex_);
  return asks_[CommunicatorOf(communicator)];
}

void PlayedNccl::Write(const std::string& deed, ncclComm_t communicator) {
  calls_.push_back(absl::StrCat(group_depth_ > 0 ? "grouped " : "", deed, " ",
                                reinterpret_cast<uintptr_t>(communicator)));
}

ncclResult_t PlayedNccl::Record(const std::string& deed, ncclComm_t communicator) {
  MutexLock lock(&mutex_);
  Write(deed, communicator);
  return ncclSuccess;
}

ncclResult_t PlayedNccl::Init(const std::string& deed, ncclComm_t* made) {
  MutexLock lock(&mutex_);
  *made = CommunicatorOf(++made_);
  Write(deed, *made);
  asks_left_[*made] = kAsks;
  return ncclInProgress;
}

ncclResult_t PlayedNccl::Ask(ncclComm_t communicator, ncclResult_t* state) {
  if (communicator == nullptr) return ncclInvalidArgument;
  MutexLock lock(&mutex_);
  ++asks_[communicator];
  const auto asks_left = asks_left_.find(communicator);
  if (asks_left != asks_left_.end()) {
    if (--asks_left->second >= 0) {
      *state = ncclInProgress;
      return ncclSuccess;
    }
    states_[communicator] = end_of_init_;
    asks_left_.erase(asks_left);
  }
  const auto found = states_.find(communicator);
  *state = found == states_.end() ? ncclSuccess : found->second;
  return ncclSuccess;
}

ncclResult_t PlayedNccl::Register(const std::string& deed, ncclComm_t communicator, void* data,
                                  void** handle) {
  MutexLock lock(&mutex_);
  Write(deed, communicator);
  const auto planned = registrations_.find(communicator);
  if (planned == registrations_.end()) {
    *handle = data;
    return ncclSuccess;
  }
  const Registration registration = planned->second;
  registrations_.erase(planned);
  *handle = registration.gives_handle ? data : nullptr;
  return registration.result;
}

ncclResult_t PlayedNccl::RegisterWindow(ncclComm_t communicator, void* data, ncclWindow_t* window) {
  void* handle = nullptr;
  const ncclResult_t result = Register("register window", communicator, data, &handle);
  MutexLock lock(&mutex_);
  const auto state = states_.find(communicator);
  if (state != states_.end() && state->second == ncclInProgress) {
    unmade_windows_[communicator] = window;
  } else {
    *window = static_cast<ncclWindow_t>(handle);
  }
  return result;
}

ncclResult_t PlayedNccl::Abort(ncclComm_t communicator) {
  MutexLock lock(&mutex_);
  Write("abort", communicator);
  const auto unmade = unmade_windows_.find(communicator);
  if (unmade != unmade_windows_.end()) *unmade->second = nullptr;
  return ncclSuccess;
}

ncclResult_t PlayedNccl::Allocate(void** data, size_t bytes) {
  MutexLock lock(&mutex_);
  Write("allocate", nullptr);
  const ncclResult_t result = std::exchange(next_allocation_, ncclSuccess);
  if (result == ncclSuccess) *data = malloc(bytes);
  return result;
}

cudaError_t PlayedNccl::AllocatePlain(void** data, size_t bytes) {
  MutexLock lock(&mutex_);
  Write("plain allocate", nullptr);
  const cudaError_t result = std::exchange(next_plain_allocation_, cudaSuccess);
  if (result == cudaSuccess) *data = malloc(bytes);
  return result;
}

void PlayedNccl::Group(int step) {
  MutexLock lock(&mutex_);
  group_depth_ += step;
}

void PlayedNccl::RecordEvent(cudaEvent_t event) {
  MutexLock lock(&mutex_);
  if (gpu_is_slow_) pending_.insert(event);
}

bool PlayedNccl::IsPending(cudaEvent_t event) {
  MutexLock lock(&mutex_);
  return pending_.count(event) > 0;
}

bool PlayedNccl::IsCapturing() {
  MutexLock lock(&mutex_);
  return capturing_;
}

}  // namespace convene::worker::testing

using convene::worker::testing::PlayedNccl;

extern "C" {

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int, ncclUniqueId, int,
                                    ncclConfig_t* config) {
  const std::string limit = config->maxCTAs == NCCL_CONFIG_UNDEF_INT
                                ? ""
                                : " of " + std::to_string(config->maxCTAs) + " blocks";
  const std::string policy = config->CTAPolicy == NCCL_CTA_POLICY_ZERO ? " by copy engines" : "";
  return PlayedNccl::OfProcess().Init(
      (config->blocking == 0 ? "init" : "blocking init") + limit + policy, communicator);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  return PlayedNccl::OfProcess().Ask(communicator, state);
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  return PlayedNccl::OfProcess().Abort(communicator);
}
ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  return PlayedNccl::OfProcess().Record("finalize", communicator);
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  return PlayedNccl::OfProcess().Record("destroy", communicator);
}
ncclResult_t ncclGroupStart() {
  PlayedNccl::OfProcess().Group(1);
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  PlayedNccl::OfProcess().Group(-1);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* data, size_t, void** handle) {
  return PlayedNccl::OfProcess().Register("register", communicator, data, handle);
}
ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void*) {
  return PlayedNccl::OfProcess().Record("deregister", communicator);
}
ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void* data, size_t,
                                    ncclWindow_t* window, int) {
  return PlayedNccl::OfProcess().RegisterWindow(communicator, data, window);
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t) {
  return PlayedNccl::OfProcess().Record("deregister window", communicator);
}
ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  return PlayedNccl::OfProcess().Allocate(data, bytes);
}
ncclResult_t ncclMemFree(void* data) {
  free(data);
  return PlayedNccl::OfProcess().Record("free", nullptr);
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return PlayedNccl::OfProcess().AllocatePlain(data, bytes);
}
cudaError_t cudaFree(void* data) {
  free(data);
  (void)PlayedNccl::OfProcess().Record("plain free", nullptr);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMemset(void*, int, size_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = PlayedNccl::OfProcess().IsCapturing() ? cudaStreamCaptureStatusActive
                                                  : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  static std::atomic<uintptr_t> events = 0;
  *event = reinterpret_cast<cudaEvent_t>(++events);  // NOLINT(performance-no-int-to-ptr)
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  PlayedNccl::OfProcess().RecordEvent(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return PlayedNccl::OfProcess().IsPending(event) ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

}  // extern "C"
