#include "tests/gpu/toolchain_kernel.h"

namespace convene::testing {
namespace {

__global__ void AxpyKernel(int count, float alpha, const float* x, float* y) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) y[i] += alpha * x[i];
}

}  // namespace

cudaError_t Axpy(int count, float alpha, const float* x, float* y, cudaStream_t stream) {
  constexpr int kThreads = 256;
  AxpyKernel<<<(count + kThreads - 1) / kThreads, kThreads, 0, stream>>>(count, alpha, x, y);
  return cudaGetLastError();
}

}  // namespace convene::testing
