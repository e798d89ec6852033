// The CUDA toolchain itself: a kernel and each library that the trainer links. Without a GPU it
// still proves that everything compiles, links and loads.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <vector>

#include "tests/gpu/toolchain_kernel.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"

namespace convene::testing {
namespace {

TEST_CASE("the CUDA libraries load and are of the major versions that were linked") {
  int cuda_runtime = 0;
  REQUIRE_CUDA(cudaRuntimeGetVersion(&cuda_runtime));
  int nccl = 0;
  REQUIRE(ncclGetVersion(&nccl) == ncclSuccess);
  const size_t cublaslt = cublasLtGetVersion();
  const size_t cudnn = cudnnGetVersion();
  std::printf("CUDA runtime %d, cuBLASLt %zu, cuDNN %zu, NCCL %d\n", cuda_runtime, cublaslt, cudnn,
              nccl);
  CHECK(cuda_runtime / 1000 == CUDART_VERSION / 1000);
  CHECK(cublaslt / 10000 == CUBLAS_VER_MAJOR);
  CHECK(cudnn / 10000 == CUDNN_MAJOR);
  CHECK(nccl / 10000 == NCCL_MAJOR);
}

TEST_CASE("a kernel compiled by nvcc computes what it says") {
  if (!HasGpuOrSkips()) return;
  constexpr int kCount = 1000;  // not a multiple of the block
  std::vector<float> x(kCount);
  std::vector<float> y(kCount, 1.0F);
  for (int i = 0; i < kCount; ++i) x[i] = static_cast<float>(i);
  float* device_x = nullptr;
  float* device_y = nullptr;
  REQUIRE_CUDA(cudaMalloc(&device_x, kCount * sizeof(float)));
  REQUIRE_CUDA(cudaMalloc(&device_y, kCount * sizeof(float)));
  REQUIRE_CUDA(cudaMemcpy(device_x, x.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  REQUIRE_CUDA(cudaMemcpy(device_y, y.data(), kCount * sizeof(float), cudaMemcpyHostToDevice));
  REQUIRE_CUDA(Axpy(kCount, 2.0F, device_x, device_y, nullptr));
  REQUIRE_CUDA(cudaMemcpy(y.data(), device_y, kCount * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i) REQUIRE(y[i] == 1.0F + 2.0F * static_cast<float>(i));
  REQUIRE_CUDA(cudaFree(device_x));
  REQUIRE_CUDA(cudaFree(device_y));
}

TEST_CASE("cuBLASLt and cuDNN open the device") {
  if (!HasGpuOrSkips()) return;
  cublasLtHandle_t cublaslt = nullptr;
  REQUIRE(cublasLtCreate(&cublaslt) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasLtDestroy(cublaslt) == CUBLAS_STATUS_SUCCESS);
  cudnnHandle_t cudnn = nullptr;
  REQUIRE(cudnnCreate(&cudnn) == CUDNN_STATUS_SUCCESS);
  CHECK(cudnnDestroy(cudnn) == CUDNN_STATUS_SUCCESS);
}

TEST_CASE("NCCL forms a group of one and sums over it") {
  if (!HasGpuOrSkips()) return;
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t group = nullptr;
  REQUIRE(ncclCommInitRank(&group, 1, id, 0) == ncclSuccess);
  float* value = nullptr;
  const float before = 3.0F;
  float after = 0.0F;
  REQUIRE_CUDA(cudaMalloc(&value, sizeof(float)));
  REQUIRE_CUDA(cudaMemcpy(value, &before, sizeof(float), cudaMemcpyHostToDevice));
  REQUIRE(ncclAllReduce(value, value, 1, ncclFloat, ncclSum, group, nullptr) == ncclSuccess);
  REQUIRE_CUDA(cudaMemcpy(&after, value, sizeof(float), cudaMemcpyDeviceToHost));
  CHECK(after == before);
  REQUIRE_CUDA(cudaFree(value));
  CHECK(ncclCommDestroy(group) == ncclSuccess);
}

}  // namespace
}  // namespace convene::testing
