// Times a product's candidates where they will run.
#pragma once

#include <cublasLt.h>

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/ops/cuda/matmul/problem.h"

namespace convene::worker::cuda {

// Milliseconds of each candidate's runs (none for one that cannot run), by CUDA events in the
// queue's stream, after a run that is not counted. The candidates take turns, so that a clock that
// changes meets them all. `d` is overwritten; c is only read. Waits for the queue: DeadlineExceeded
// when it has not come to an end within a minute, Internal when something queued failed.
absl::StatusOr<std::vector<std::vector<float>>> TimeCandidates(
    Queue& queue, const MatMulProblem& problem,
    absl::Span<const cublasLtMatmulHeuristicResult_t> candidates, const void* a, const void* b,
    const void* c, void* d, int runs);

}  // namespace convene::worker::cuda
