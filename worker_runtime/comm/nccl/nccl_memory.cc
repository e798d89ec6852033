#include "worker_runtime/comm/nccl/nccl_memory.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/nccl/nccl_collective.h"
#include "worker_runtime/comm/nccl/session.h"
#include "worker_runtime/device/cuda/queue.h"

namespace convene::worker {
namespace {

std::weak_ptr<NcclSession> SessionOf(const CommunicatorSet& set) {
  for (Collective* const collective : set.OnDevice()) {
    const auto* const over_nccl = dynamic_cast<NcclCollective*>(collective);
    if (over_nccl != nullptr) return over_nccl->session();
  }
  return {};
}

}  // namespace

NcclMemory::NcclMemory(const CommunicatorSet& set) : session_(SessionOf(set)) {}

absl::StatusOr<void*> NcclMemory::Allocate(size_t bytes) {
  CONVENE_CHECK(bytes > 0);
  void* data = nullptr;
  if (ncclMemAlloc(&data, bytes) != ncclSuccess) {
    cudaGetLastError();  // not the next call's
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(absl::StrCat("the GPU has no block of ", bytes, " bytes; ",
                                                     free_bytes, " of its ", total_bytes,
                                                     " bytes are free"));
  }
  absl::Status zeroed = cuda::CudaStatus(cudaMemset(data, 0, bytes), "cudaMemset");
  // Not done when it returns, and other streams do not wait for it.
  if (zeroed.ok()) zeroed = cuda::CudaStatus(cudaStreamSynchronize(nullptr), "cudaMemset");
  if (!zeroed.ok()) {
    ncclMemFree(data);
    return zeroed;
  }
  const std::shared_ptr<NcclSession> session = session_.lock();
  if (session != nullptr) registrations_[data] = session->RegisterMemory(data, bytes);
  return data;
}

void NcclMemory::Free(void* data, size_t /*bytes*/) {
  const auto registration = registrations_.find(data);
  if (registration != registrations_.end()) {
    const std::shared_ptr<NcclSession> session = session_.lock();
    if (session != nullptr) session->DeregisterMemory(registration->second);
    registrations_.erase(registration);
  }
  ncclMemFree(data);
}

}  // namespace convene::worker
