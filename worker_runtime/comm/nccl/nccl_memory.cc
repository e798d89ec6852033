#include "worker_runtime/comm/nccl/nccl_memory.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/comm/nccl/session.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {
namespace {

absl::Status Zero(void* data, size_t bytes) {
  CONVENE_RETURN_IF_ERROR(cuda::CudaStatus(cudaMemset(data, 0, bytes), "cudaMemset"));
  // The memset may run on after its return, and other streams do not wait for it.
  return cuda::CudaStatus(cudaStreamSynchronize(nullptr), "cudaMemset");
}

absl::Status NoBlock(size_t bytes, const absl::Status& from_nccl) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  return absl::ResourceExhaustedError(
      absl::StrCat("the GPU has no block of ", HumanBytes(static_cast<double>(bytes)),
                   " for collectives: ", HumanBytes(static_cast<double>(free_bytes)), " of its ",
                   HumanBytes(static_cast<double>(total_bytes)), " are free; ",
                   absl::string_view(from_nccl.message())));
}

}  // namespace

NcclMemory::NcclMemory(std::weak_ptr<NcclSession> session, Collective& host)
    : session_(std::move(session)), host_(host) {}

absl::StatusOr<void*> NcclMemory::Allocate(size_t bytes) {
  CONVENE_CHECK(bytes > 0);
  void* data = nullptr;
  const absl::Status from_nccl = Annotate(NcclStatus(ncclMemAlloc(&data, bytes)), "ncclMemAlloc");
  if (!from_nccl.ok()) {
    (void)cudaGetLastError();  // not the next call's
    if (cudaMalloc(&data, bytes) != cudaSuccess) {
      (void)cudaGetLastError();
      return NoBlock(bytes, from_nccl);
    }
    plain_.insert(data);
  }
  absl::Status status = Zero(data, bytes);
  if (status.ok()) status = RegisterEverywhere(data, bytes, from_nccl);
  if (!status.ok()) {
    GiveBack(data);
    return status;
  }
  return data;
}

absl::Status NcclMemory::RegisterEverywhere(void* data, size_t bytes,
                                            const absl::Status& from_nccl) {
  const std::shared_ptr<NcclSession> session = session_.lock();
  CONVENE_CHECK(session != nullptr);
  // Before any rank registers, because a window waits for all ranks of its communicator.
  CONVENE_ASSIGN_OR_RETURN(const bool all_have_blocks, AgreeOn(from_nccl));
  if (!all_have_blocks) return absl::OkStatus();
  const absl::Status registered = session->RegisterMemory(data, bytes);
  if (absl::IsDeadlineExceeded(registered)) return registered;
  const absl::StatusOr<bool> all_are_registered = AgreeOn(registered);
  if (!all_are_registered.ok() || !*all_are_registered) session->DeregisterMemory(data);
  return all_are_registered.status();
}

absl::StatusOr<bool> NcclMemory::AgreeOn(const absl::Status& own) {
  if (!own.ok()) {
    // Registration that is turned off needs no warning.
    spdlog::log(absl::IsFailedPrecondition(own) ? spdlog::level::info : spdlog::level::warn,
                "NCCL works without registered memory: {}", std::string(own.message()));
  }
  float missing = own.ok() ? 0.0f : 1.0f;
  Stream stream = Stream::Cpu();
  CONVENE_RETURN_IF_ERROR(host_.AllReduce(absl::MakeSpan(&missing, 1), ReduceOp::kMax, stream));
  return missing == 0;
}

void NcclMemory::Free(void* data, size_t /*bytes*/) {
  const std::shared_ptr<NcclSession> session = session_.lock();
  if (session != nullptr) session->DeregisterMemory(data);
  GiveBack(data);
}

void NcclMemory::GiveBack(void* data) {
  if (plain_.erase(data) > 0) {
    cudaFree(data);
  } else {
    ncclMemFree(data);
  }
}

}  // namespace convene::worker
