#include "worker_runtime/ops/cuda/matmul/candidate_timer.h"

#include <cuda_runtime.h>

#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/wait.h"

namespace convene::worker::cuda {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

// Start and end of one run.
class EventPair {
 public:
  EventPair() = default;
  ~EventPair() {
    for (const cudaEvent_t event : {start_, end_}) {
      if (event != nullptr) (void)cudaEventDestroy(event);
    }
  }
  EventPair(const EventPair&) = delete;
  EventPair& operator=(const EventPair&) = delete;

  absl::Status Create() {
    CONVENE_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&start_), "cudaEventCreate"));
    return CudaStatus(cudaEventCreate(&end_), "cudaEventCreate");
  }
  absl::Status RecordStart(cudaStream_t stream) {
    return CudaStatus(cudaEventRecord(start_, stream), "cudaEventRecord");
  }
  absl::Status RecordEnd(cudaStream_t stream) {
    return CudaStatus(cudaEventRecord(end_, stream), "cudaEventRecord");
  }
  absl::StatusOr<float> Milliseconds() {
    CONVENE_RETURN_IF_ERROR(WaitFor(end_, kPatience));
    float milliseconds = 0;
    CONVENE_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, start_, end_), "cudaEventElapsedTime"));
    return milliseconds;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace

absl::StatusOr<std::vector<std::vector<float>>> TimeCandidates(
    Queue& queue, const MatMulProblem& problem,
    absl::Span<const cublasLtMatmulHeuristicResult_t> candidates, const void* a, const void* b,
    const void* c, void* d, int runs) {
  std::vector<std::vector<float>> times(candidates.size());
  std::vector<bool> can_run(candidates.size(), true);
  EventPair events;
  CONVENE_RETURN_IF_ERROR(events.Create());
  for (int run = -1; run < runs; ++run) {  // -1: warm-up
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!can_run[i]) continue;
      CONVENE_RETURN_IF_ERROR(events.RecordStart(queue.stream()));
      const cublasStatus_t launched =
          problem.Launch(queue.cublaslt(), candidates[i].algo, a, b, c, d, queue.matmul_workspace(),
                         Queue::kMatMulWorkspaceBytes, queue.stream());
      CONVENE_RETURN_IF_ERROR(events.RecordEnd(queue.stream()));
      CONVENE_ASSIGN_OR_RETURN(const float milliseconds, events.Milliseconds());
      can_run[i] = launched == CUBLAS_STATUS_SUCCESS;
      if (!can_run[i]) (void)cudaGetLastError();  // a refusal is no error of the next launch
      if (can_run[i] && run >= 0) times[i].push_back(milliseconds);
    }
  }
  return times;
}

}  // namespace convene::worker::cuda
