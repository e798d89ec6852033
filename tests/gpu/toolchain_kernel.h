// A kernel small enough to check by hand: proof that nvcc's code, gcc's code and the runtime fit
// together.
#pragma once

#include <cuda_runtime.h>

namespace convene::testing {

// y[i] += alpha * x[i] for i in [0, count), on `stream`. x and y: device memory. Returns the
// launch's error.
cudaError_t Axpy(int count, float alpha, const float* x, float* y, cudaStream_t stream);

}  // namespace convene::testing
