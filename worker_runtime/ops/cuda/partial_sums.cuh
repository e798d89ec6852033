// The second half of a sum in double: what the blocks of the first half left, in a fixed order.
#pragma once

#include "worker_runtime/ops/cuda/launch.cuh"
#include "worker_runtime/ops/cuda/vector.cuh"

namespace convene::worker::cuda {

// *sum += the sum of `partials`. One block of kSumThreads.
static __global__ void __launch_bounds__(kSumThreads)
    AddPartialSums(int count, const double* partials, double* sum) {
  __shared__ double scratch[kWarp];
  double part = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads) part += partials[i];
  const double total = BlockSum(part, scratch);
  if (threadIdx.x == 0) *sum += total;
}

}  // namespace convene::worker::cuda
