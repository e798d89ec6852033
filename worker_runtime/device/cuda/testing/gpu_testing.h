// For every test tagged `cuda`: a clear skip on a machine without a GPU, and checks that name
// CUDA's error.
#pragma once

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cstdio>

namespace convene::testing {

// Whether this machine has a usable GPU. Without one prints the line `SKIPPED: ...`, by which
// tools/check counts the test case as skipped (Catch2 v2 cannot skip); the test case then returns:
//   if (!HasGpuOrSkips()) return;
inline bool HasGpuOrSkips() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return true;
  std::printf("SKIPPED: no CUDA device (%s)\n",
              cudaGetErrorName(error == cudaSuccess ? cudaErrorNoDevice : error));
  std::fflush(stdout);
  return false;
}

}  // namespace convene::testing

#define REQUIRE_CUDA(expression)                    \
  do {                                              \
    const cudaError_t convene_error = (expression); \
    INFO(cudaGetErrorString(convene_error));        \
    REQUIRE(convene_error == cudaSuccess);          \
  } while (false)
