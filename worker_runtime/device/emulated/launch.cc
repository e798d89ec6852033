// Launches: CUDA's limits, then the grid.
#include <utility>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/device/emulated/state.h"

namespace convene::emulated {
namespace {

std::string NameOf(const void* kernel) {
  char name[512];
  return absl::Symbolize(kernel, name, sizeof(name)) ? name : "a kernel";
}

// CUDA C++ Programming Guide, "Compute Capabilities", 9.0.
bool IsWithinLimits(const cudaLaunchConfig_t& config) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= 0x7fffffffu && grid.y <= 65535 &&
         grid.z <= 65535 && threads > 0 && threads <= uint64_t{kBlockThreadsMax} &&
         block.x <= kBlockThreadsMax && block.y <= kBlockThreadsMax && block.z <= 64;
}

}  // namespace

cudaError_t SetDynamicSharedBytesMax(const void* kernel, int bytes) {
  const MutexLock lock(&TheState().mutex);
  if (bytes < 0 || static_cast<size_t>(bytes) > kSharedBytesMax) return Say(cudaErrorInvalidValue);
  TheState().dynamic_shared_max[kernel] = static_cast<size_t>(bytes);
  return Health();
}

cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::function<void()> thread) {
  const MutexLock lock(&TheState().mutex);
  if (!IsWithinLimits(config)) return Say(cudaErrorInvalidConfiguration);
  if (Resolve(config.stream)->device != CurrentDevice()) {
    return Say(cudaErrorInvalidResourceHandle);
  }
  const auto found = TheState().dynamic_shared_max.find(kernel);
  const size_t dynamic_max = found == TheState().dynamic_shared_max.end()
                                 ? kSharedBytesDefault
                                 : std::max(found->second, kSharedBytesDefault);
  if (config.dynamicSmemBytes > dynamic_max) return Say(cudaErrorInvalidValue);
  const Grid grid = {config.gridDim, config.blockDim, config.dynamicSmemBytes, std::move(thread)};
  return Enqueue(config.stream, {.work = [grid, kernel] {
                   const std::string violation = RunGrid(grid, TheState().order);
                   if (!violation.empty()) Fail(absl::StrCat(NameOf(kernel), ": ", violation));
                 }});
}

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CONVENE_NAME(name) \
  case name:               \
    return #name
    CONVENE_NAME(cudaSuccess);
    CONVENE_NAME(cudaErrorInvalidValue);
    CONVENE_NAME(cudaErrorMemoryAllocation);
    CONVENE_NAME(cudaErrorInvalidConfiguration);
    CONVENE_NAME(cudaErrorInsufficientDriver);
    CONVENE_NAME(cudaErrorNoDevice);
    CONVENE_NAME(cudaErrorInvalidDevice);
    CONVENE_NAME(cudaErrorInvalidResourceHandle);
    CONVENE_NAME(cudaErrorNotReady);
    CONVENE_NAME(cudaErrorLaunchFailure);
    CONVENE_NAME(cudaErrorStreamCaptureUnsupported);
    CONVENE_NAME(cudaErrorStreamCaptureInvalidated);
#undef CONVENE_NAME
  }
  return "?";
}

const char* cudaGetErrorString(cudaError_t error) {
  if (error != cudaErrorLaunchFailure) return cudaGetErrorName(error);
  return TheState().failure.c_str();
}

}  // extern "C"
}  // namespace convene::emulated
