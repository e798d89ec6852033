#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"

#include <cuda_runtime.h>

#include <atomic>
#include <optional>
#include <vector>

#include "worker_runtime/ops/cuda/matmul/candidate_timer.h"

namespace convene::worker::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kTimedRuns = 5;

std::atomic<MatMulMode> process_mode = MatMulMode::kTimed;

// Memory in stream order: neither its allocation nor its release waits for the device, which may be
// busy with other streams' collectives.
class Scratch {
 public:
  Scratch(size_t bytes, Queue& queue) : queue_(queue) {
    const cudaError_t error = cudaMallocAsync(&data_, bytes, queue.stream());
    if (error == cudaSuccess) return;
    data_ = nullptr;
    // Too little memory is no error: then nothing is timed.
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
    } else {
      queue.Report(error, "cudaMallocAsync of a product's scratch output");
    }
  }
  ~Scratch() {
    if (data_ != nullptr) queue_.Report(cudaFreeAsync(data_, queue_.stream()), "cudaFreeAsync");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* get() const { return data_; }

 private:
  Queue& queue_;
  void* data_ = nullptr;
};

// The index of the fastest candidate; 0 when there is no room to try them.
size_t Fastest(Queue& queue, const MatMulKey& key, const MatMulProblem& problem,
               const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
               const MatMulOperands& operands) {
  if (candidates.size() == 1) return 0;
  // An output that is added to needs scratch, for a trial run must not add to it; one that is
  // overwritten may be overwritten again and again.
  std::optional<Scratch> scratch;
  if (key.accumulate) {
    scratch.emplace(size_t{1} * key.m * key.n * SizeOf(key.out), queue);
    if (scratch->get() == nullptr) return 0;
  }
  const absl::StatusOr<std::vector<std::vector<float>>> times =
      TimeCandidates(queue, problem, candidates, operands.a, operands.b, operands.c,
                     scratch.has_value() ? scratch->get() : operands.c, kTimedRuns);
  if (!times.ok()) {
    // A stream that something else holds up is for the watchdog to judge.
    if (!absl::IsDeadlineExceeded(times.status())) queue.Report(times.status());
    return 0;
  }
  return FastestCandidate(*times);
}

}  // namespace

void SetMatMulMode(MatMulMode mode) { process_mode = mode; }
MatMulMode CurrentMatMulMode() { return process_mode; }

void MatMulPlans::Run(MatMulKey key, const MatMulOperands& operands) {
  key.mode = CurrentMatMulMode();
  Plan* plan = Find(key, operands);
  if (plan == nullptr) return;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (operands.inverse_a != nullptr) {
    status = plan->problem.SetInverses(operands.inverse_a, operands.inverse_b);
  }
  if (status == CUBLAS_STATUS_SUCCESS) status = Launch(*plan, operands);
  queue_.Report(status, "matmul: cublasLtMatmul");
}

void MatMulPlans::RunOnce(MatMulKey key, const MatMulOperands& operands) {
  key.mode = CurrentMatMulMode();
  if (key.mode == MatMulMode::kTimed) key.mode = MatMulMode::kFirst;
  const std::unique_ptr<Plan> plan = Make(key, operands);
  if (plan != nullptr) queue_.Report(Launch(*plan, operands), "matmul: cublasLtMatmul");
}

cublasStatus_t MatMulPlans::Launch(const Plan& plan, const MatMulOperands& operands) {
  return plan.problem.Launch(queue_.cublaslt(), plan.algorithm, operands.a, operands.b, operands.c,
                             operands.c, queue_.matmul_workspace(), Queue::kMatMulWorkspaceBytes,
                             queue_.stream());
}

MatMulPlans::Plan* MatMulPlans::Find(MatMulKey key, const MatMulOperands& operands) {
  auto found = plans_.find(key);
  if (found == plans_.end() && key.mode == MatMulMode::kTimed && IsBeingCaptured()) {
    key.mode = MatMulMode::kFirst;
    found = plans_.find(key);
  }
  if (found == plans_.end()) found = plans_.emplace(key, Make(key, operands)).first;
  return found->second.get();
}

std::unique_ptr<MatMulPlans::Plan> MatMulPlans::Make(const MatMulKey& key,
                                                     const MatMulOperands& operands) {
  if (queue_.cublaslt() == nullptr || queue_.matmul_workspace() == nullptr) return nullptr;
  auto plan = std::make_unique<Plan>(key);
  cublasStatus_t status = plan->problem.status();
  if (status == CUBLAS_STATUS_SUCCESS && operands.inverse_a != nullptr) {
    status = plan->problem.SetInverses(operands.inverse_a, operands.inverse_b);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;
  if (status == CUBLAS_STATUS_SUCCESS) {
    candidates = plan->problem.Candidates(queue_.cublaslt(), kCandidates,
                                          Queue::kMatMulWorkspaceBytes, status);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    queue_.Report(status, "matmul: no algorithm");
    return nullptr;
  }
  const size_t chosen = key.mode == MatMulMode::kTimed
                            ? Fastest(queue_, key, plan->problem, candidates, operands)
                            : 0;
  plan->algorithm = candidates[chosen].algo;
  return plan;
}

bool MatMulPlans::IsBeingCaptured() {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  queue_.Report(cudaStreamIsCapturing(queue_.stream(), &capture), "cudaStreamIsCapturing");
  return capture != cudaStreamCaptureStatusNone;
}

}  // namespace convene::worker::cuda
