// Calls that cuDNN's frontend contains and that Convene's graphs never come to: it measures
// engines, and compiles and launches kernels of its own.
#include <cstdio>

#include "tools/base/check.h"

extern "C" {

// Tells the frontend that it cannot ask which context the thread has; it then leaves it alone.
int cudaGetDriverEntryPointByVersion() { return 1; }  // cudaErrorInvalidValue

#define CONVENE_NOT_EMULATED(name)                                       \
  void name() {                                                          \
    std::fprintf(stderr, "emulated cuDNN: %s is not emulated\n", #name); \
    CONVENE_CHECK(false);                                                \
  }
CONVENE_NOT_EMULATED(cudaDeviceSynchronize)
CONVENE_NOT_EMULATED(cudaEventSynchronize)
CONVENE_NOT_EMULATED(cudaKernelSetAttributeForDevice)
CONVENE_NOT_EMULATED(cudaLaunchKernel)
CONVENE_NOT_EMULATED(cudaLibraryGetKernel)
CONVENE_NOT_EMULATED(cudaLibraryLoadData)
CONVENE_NOT_EMULATED(cudaLibraryUnload)
CONVENE_NOT_EMULATED(nvrtcCompileProgram)
CONVENE_NOT_EMULATED(nvrtcCreateProgram)
CONVENE_NOT_EMULATED(nvrtcDestroyProgram)
CONVENE_NOT_EMULATED(nvrtcGetCUBIN)
CONVENE_NOT_EMULATED(nvrtcGetCUBINSize)
CONVENE_NOT_EMULATED(nvrtcGetProgramLog)
CONVENE_NOT_EMULATED(nvrtcGetProgramLogSize)

}  // extern "C"
