#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"

#include <cuda_runtime.h>
#include <xxhash.h>

#include <atomic>
#include <bit>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker_runtime/ops/cuda/matmul/candidate_timer.h"

namespace convene::worker::cuda {
namespace {

constexpr int kCandidates = 8;
constexpr int kTimedRuns = 5;

std::atomic<MatMulMode> process_mode = MatMulMode::kTimed;
std::atomic<MatMulChoices*> process_choices = nullptr;

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
  ~Scratch() { Free(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* get() const { return data_; }
  // Gives the memory back to the GPU: the pool of memory in stream order keeps what is freed until
  // somebody synchronizes, and NCCL may want it in the same step. The stream has nothing else to
  // do.
  void GiveBack() {
    if (data_ == nullptr) return;
    Free();
    queue_.Report(cudaStreamSynchronize(queue_.stream()), "a product's scratch output");
  }

 private:
  void Free() {
    if (data_ != nullptr) queue_.Report(cudaFreeAsync(data_, queue_.stream()), "cudaFreeAsync");
    data_ = nullptr;
  }

  Queue& queue_;
  void* data_ = nullptr;
};

// The index of the fastest candidate; nullopt when there is no room, or no time, to try them.
std::optional<size_t> Fastest(Queue& queue, const MatMulKey& key, const MatMulProblem& problem,
                              const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
                              const MatMulOperands& operands) {
  // An output that is added to needs scratch, for a trial run must not add to it; one that is
  // overwritten may be overwritten again and again.
  std::optional<Scratch> scratch;
  if (key.accumulate) {
    scratch.emplace(size_t{1} * key.m * key.n * SizeOf(key.out), queue);
    if (scratch->get() == nullptr) return std::nullopt;
  }
  const absl::StatusOr<std::vector<std::vector<float>>> times =
      TimeCandidates(queue, problem, candidates, operands.a, operands.b, operands.c,
                     scratch.has_value() ? scratch->get() : operands.c, kTimedRuns);
  if (!times.ok()) {
    // A stream that something else holds up is for the watchdog to judge.
    if (!absl::IsDeadlineExceeded(times.status())) queue.Report(times.status());
    return std::nullopt;
  }
  if (scratch.has_value()) scratch->GiveBack();
  return FastestCandidate(*times);
}

uint64_t NameOf(const cublasLtMatmulHeuristicResult_t& candidate) {
  return XXH3_64bits(&candidate.algo, sizeof(candidate.algo));
}

// No description of an algorithm comes from outside to the library: a name that is known selects
// one of the library's own candidates, or nothing.
std::optional<size_t> IndexOf(std::optional<uint64_t> name,
                              const std::vector<cublasLtMatmulHeuristicResult_t>& candidates) {
  for (size_t i = 0; i < candidates.size() && name.has_value(); ++i) {
    if (NameOf(candidates[i]) == *name) return i;
  }
  return std::nullopt;
}

// The index of the candidate that is remembered, or else of the fastest, which is then remembered.
size_t Choose(Queue& queue, const MatMulKey& key, const MatMulProblem& problem,
              const std::vector<cublasLtMatmulHeuristicResult_t>& candidates,
              const MatMulOperands& operands) {
  if (candidates.size() == 1) return 0;
  MatMulChoices* const choices = process_choices;
  if (choices == nullptr) return Fastest(queue, key, problem, candidates, operands).value_or(0);
  const std::string product = ToText(key);
  if (const auto known = IndexOf(choices->Find(product), candidates)) return *known;
  const std::optional<size_t> fastest = Fastest(queue, key, problem, candidates, operands);
  if (!fastest.has_value()) return 0;
  const uint64_t landed = choices->Land(product, NameOf(candidates[*fastest]));
  return IndexOf(landed, candidates).value_or(*fastest);
}

}  // namespace

void SetMatMulMode(MatMulMode mode) { process_mode = mode; }
MatMulMode CurrentMatMulMode() { return process_mode; }
void SetMatMulChoices(MatMulChoices* choices) { process_choices = choices; }
std::string CublasLtVersion() { return absl::StrCat("cuBLASLt ", cublasLtGetVersion()); }

void MatMulPlans::Run(MatMulKey key, const MatMulOperands& operands) {
  key = InMode(key, CurrentMatMulMode());
  Plan* plan = Find(key, operands);
  if (plan == nullptr) return;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (operands.inverse_a != nullptr) {
    status = plan->problem.SetInverses(operands.inverse_a, operands.inverse_b);
  }
  if (status == CUBLAS_STATUS_SUCCESS) status = Launch(*plan, operands);
  queue_.Report(status, "matmul: cublasLtMatmul");
}

void MatMulPlans::RunRows(MatMulKey key, int MatMulKey::*rows, const MatMulOperands& operands) {
  const MatMulMode mode = CurrentMatMulMode();
  key = InMode(key, mode == MatMulMode::kTimed ? MatMulMode::kFirst : mode);
  key.unsplit = rows == &MatMulKey::k;  // The algorithm serves other k than it was asked for.
  MatMulKey alike = key;
  alike.*rows = static_cast<int>(std::bit_floor(static_cast<unsigned>(key.*rows)));
  const Plan* const known = Find(alike, operands);
  if (known == nullptr) return;
  auto plan = std::make_unique<Plan>(key);
  plan->algorithm = known->algorithm;
  if (plan->problem.status() != CUBLAS_STATUS_SUCCESS ||
      !plan->problem.Takes(queue_.cublaslt(), plan->algorithm, Queue::kMatMulWorkspaceBytes)) {
    plan = Make(key, operands);
  }
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
    ++asked_;
    candidates = plan->problem.Candidates(queue_.cublaslt(), kCandidates,
                                          Queue::kMatMulWorkspaceBytes, status);
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    queue_.Report(status, "matmul: no algorithm");
    return nullptr;
  }
  const size_t chosen =
      key.mode == MatMulMode::kTimed ? Choose(queue_, key, plan->problem, candidates, operands) : 0;
  plan->algorithm = candidates[chosen].algo;
  return plan;
}

bool MatMulPlans::IsBeingCaptured() {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  queue_.Report(cudaStreamIsCapturing(queue_.stream(), &capture), "cudaStreamIsCapturing");
  return capture != cudaStreamCaptureStatusNone;
}

}  // namespace convene::worker::cuda
