#include "worker_runtime/device/cuda/queue.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker::cuda {

// Each is made at its first use, and tried once: a library that failed to start would fail again,
// slowly.
struct Queue::Libraries {
  bool cublaslt_tried = false;
  cublasLtHandle_t cublaslt = nullptr;
  bool cudnn_tried = false;
  cudnnHandle_t cudnn = nullptr;
  bool workspace_tried = false;
  void* matmul_workspace = nullptr;
  std::vector<std::pair<const void*, OwnedPlans>> plans;  // two or three
};

absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

absl::StatusOr<std::unique_ptr<Queue>> Queue::Create(int priority, FirstError& first_error) {
  int device = 0;
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  int multiprocessors = 0;
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                 "the device's number of multiprocessors"));
  cudaStream_t stream = nullptr;
  // Non-blocking: nothing of ours waits for the legacy default stream.
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
                 "cudaStreamCreateWithPriority"));
  return std::unique_ptr<Queue>(new Queue(first_error, stream, multiprocessors));
}

Queue::Queue(FirstError& first_error, cudaStream_t stream, int multiprocessors)
    : first_error_(first_error),
      stream_(stream),
      multiprocessors_(multiprocessors),
      libraries_(std::make_unique<Libraries>()) {}

Queue::~Queue() {
  while (!libraries_->plans.empty()) libraries_->plans.pop_back();
  if (libraries_->cudnn != nullptr) Report(cudnnDestroy(libraries_->cudnn), "cudnnDestroy");
  if (libraries_->cublaslt != nullptr) {
    Report(cublasLtDestroy(libraries_->cublaslt), "cublasLtDestroy");
  }
  if (libraries_->matmul_workspace != nullptr) {
    Report(cudaFree(libraries_->matmul_workspace), "cudaFree of the products' scratch");
  }
  Report(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

cublasLtHandle_t Queue::cublaslt() {
  if (!std::exchange(libraries_->cublaslt_tried, true)) {
    Report(cublasLtCreate(&libraries_->cublaslt), "cublasLtCreate");
  }
  return libraries_->cublaslt;
}

cudnnHandle_t Queue::cudnn() {
  if (!std::exchange(libraries_->cudnn_tried, true)) {
    Report(cudnnCreate(&libraries_->cudnn), "cudnnCreate");
    if (libraries_->cudnn != nullptr) {
      Report(cudnnSetStream(libraries_->cudnn, stream_), "cudnnSetStream");
    }
  }
  return libraries_->cudnn;
}

void* Queue::matmul_workspace() {
  if (!std::exchange(libraries_->workspace_tried, true)) {
    Report(cudaMalloc(&libraries_->matmul_workspace, kMatMulWorkspaceBytes),
           "cudaMalloc of the products' scratch (32 MiB)");
  }
  return libraries_->matmul_workspace;
}

void Queue::Report(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  Report(CudaStatus(error, what));
}

void Queue::Report(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  Report(absl::InternalError(absl::StrCat(what, ": ", cublasLtGetStatusName(status), ": ",
                                          cublasLtGetStatusString(status))));
}

void Queue::Report(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char last_words[512] = "";
  cudnnGetLastErrorString(last_words, sizeof(last_words));
  Report(absl::InternalError(
      absl::StrCat(what, ": cuDNN: ", cudnnGetErrorString(status), ": ", last_words)));
}

void Queue::Report(const absl::Status& status) {
  (aside_ != nullptr ? *aside_ : first_error_).Report(status);
}

void* Queue::FindPlans(const void* key) const {
  for (const auto& [kept_key, plans] : libraries_->plans) {
    if (kept_key == key) return plans.get();
  }
  return nullptr;
}

void Queue::KeepPlans(const void* key, OwnedPlans plans) {
  libraries_->plans.emplace_back(key, std::move(plans));
}

}  // namespace convene::worker::cuda
