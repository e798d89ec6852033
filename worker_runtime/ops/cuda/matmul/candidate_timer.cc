#include "worker_runtime/ops/cuda/matmul/candidate_timer.h"

#include <cuda_runtime.h>

#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/event_chain.h"

namespace convene::worker::cuda {

absl::StatusOr<std::vector<std::vector<float>>> TimeCandidates(
    Queue& queue, const MatMulProblem& problem,
    absl::Span<const cublasLtMatmulHeuristicResult_t> candidates, const void* a, const void* b,
    const void* c, void* d, int runs) {
  std::vector<std::vector<float>> times(candidates.size());
  std::vector<bool> can_run(candidates.size(), true);
  EventChain events(queue);
  for (int run = -1; run < runs; ++run) {  // -1: warm-up
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!can_run[i]) continue;
      CONVENE_RETURN_IF_ERROR(events.Record());
      const cublasStatus_t launched =
          problem.Launch(queue.cublaslt(), candidates[i].algo, a, b, c, d, queue.matmul_workspace(),
                         Queue::kMatMulWorkspaceBytes, queue.stream());
      CONVENE_RETURN_IF_ERROR(events.Record());
      CONVENE_ASSIGN_OR_RETURN(const std::vector<float> time,
                               events.Milliseconds(absl::Minutes(1)));
      can_run[i] = launched == CUBLAS_STATUS_SUCCESS;
      if (!can_run[i]) (void)cudaGetLastError();  // a refusal is no error of the next launch
      if (can_run[i] && run >= 0) times[i].push_back(time.front());
    }
  }
  return times;
}

}  // namespace convene::worker::cuda
