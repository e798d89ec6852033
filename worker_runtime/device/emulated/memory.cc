// Memory, copies and the device's properties. Device memory is the process's own, so a pointer of
// one kind works as the other; README.md names the mistakes that this hides.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "worker_runtime/device/cuda/cards.h"
#include "worker_runtime/device/emulated/state.h"

namespace convene::emulated {
namespace {

constexpr size_t kDeviceBytes = size_t{8} << 30;
constexpr size_t kAlignment = 256;
constexpr int kPoison = 0xff;  // NaN, -1

cudaError_t Allocate(void** data, size_t bytes, cudaMemoryType type) {
  State& state = TheState();
  const MutexLock lock(&state.mutex);
  if (SpoilsCapture()) return Say(cudaErrorStreamCaptureUnsupported);
  size_t& in_use = state.device_bytes[CurrentDevice()];
  const size_t taken = in_use + state.pool_bytes[CurrentDevice()];
  if (bytes > kDeviceBytes || taken + bytes > kDeviceBytes) return Say(cudaErrorMemoryAllocation);
  void* memory = nullptr;
  if (posix_memalign(&memory, kAlignment, bytes == 0 ? 1 : bytes) != 0) {
    return Say(cudaErrorMemoryAllocation);
  }
  std::memset(memory, kPoison, bytes);
  state.memory.emplace(static_cast<const char*>(memory), Block{bytes, type, CurrentDevice()});
  if (type == cudaMemoryTypeDevice) in_use += bytes;
  *data = memory;
  return Health();
}

// REQUIRES: the state's mutex is held.
cudaError_t Release(void* data, cudaMemoryType type) {
  if (data == nullptr) return Health();
  State& state = TheState();
  const auto found = state.memory.find(static_cast<const char*>(data));
  if (found == state.memory.end() || found->second.type != type) return Say(cudaErrorInvalidValue);
  const Block& block = found->second;
  if (type == cudaMemoryTypeDevice) state.device_bytes[block.device] -= block.bytes;
  state.memory.erase(found);
  std::free(data);
  return Health();
}

cudaError_t Free(void* data, cudaMemoryType type) {
  const MutexLock lock(&TheState().mutex);
  if (SpoilsCapture()) return Say(cudaErrorStreamCaptureUnsupported);
  FinishAll();
  return Release(data, type);
}

// As ten times it, of CONVENE_EMULATED_CAPABILITY ("75"); else the last that the build is for.
int ComputeCapability() {
  const char* const value = std::getenv("CONVENE_EMULATED_CAPABILITY");
  return value == nullptr ? worker::cuda::BuiltArchs().back() : std::atoi(value);
}

bool Exists(int device) {
  return device >= 0 && device < static_cast<int>(TheState().device_bytes.size());
}

// From `data` on, within the block that holds it; its type is unregistered where none does.
Block BlockFrom(const void* data) {
  const auto& memory = TheState().memory;
  auto found = memory.upper_bound(static_cast<const char*>(data));
  if (found == memory.begin()) return {};
  --found;
  const size_t before = static_cast<const char*>(data) - found->first;
  Block block = found->second;
  if (before >= block.bytes) return {};
  block.bytes -= before;
  return block;
}

cudaMemoryType TypeOf(const void* data) { return BlockFrom(data).type; }

}  // namespace

size_t DeviceBytesFrom(const void* data) {
  const Block block = BlockFrom(data);
  return block.type == cudaMemoryTypeDevice ? block.bytes : 0;
}

cudaError_t FreeNow(void* data) {
  const MutexLock lock(&TheState().mutex);
  return Release(data, cudaMemoryTypeDevice);
}

extern "C" {

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return Allocate(data, bytes, cudaMemoryTypeDevice);
}

cudaError_t cudaFree(void* data) { return Free(data, cudaMemoryTypeDevice); }

cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t /*stream*/) {
  {
    const MutexLock lock(&TheState().mutex);
    size_t& pool = TheState().pool_bytes[CurrentDevice()];
    pool -= std::min(pool, bytes);
  }
  return cudaMalloc(data, bytes);
}

// The pool gives memory back at the next synchronize alone (CUDA Runtime API,
// cudaMemPoolAttrReleaseThreshold, by default 0).
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  return Enqueue(stream, {.work = [data] {
                   const Block block = BlockFrom(data);
                   TheState().pool_bytes[block.device] += block.bytes;
                   (void)Release(data, cudaMemoryTypeDevice);
                 }});
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int /*flags*/) {
  return Allocate(data, bytes, cudaMemoryTypeHost);
}

cudaError_t cudaFreeHost(void* data) { return Free(data, cudaMemoryTypeHost); }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const MutexLock lock(&TheState().mutex);
  *total_bytes = kDeviceBytes;
  *free_bytes = kDeviceBytes - TheState().device_bytes[CurrentDevice()] -
                TheState().pool_bytes[CurrentDevice()];
  return Health();
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  const MutexLock lock(&TheState().mutex);
  attributes->type = TypeOf(data);
  return Health();
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  if (TypeOf(from) != cudaMemoryTypeUnregistered) {
    return Enqueue(stream, {.work = [=] { std::memmove(to, from, bytes); }});
  }
  // "The function will return once the pageable buffer has been copied to the staging memory" (CUDA
  // Runtime API, "API synchronization behavior").
  const char* const begin = static_cast<const char*>(from);
  return Enqueue(stream, {.work = [to, staged = std::vector<char>(begin, begin + bytes)] {
                   std::memcpy(to, staged.data(), staged.size());
                 }});
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  return Enqueue(stream, {.work = [=] { std::memset(data, value, bytes); }});
}

cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(TheState().device_bytes.size());
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const MutexLock lock(&TheState().mutex);
  if (!Exists(device)) return Say(cudaErrorInvalidDevice);
  CurrentDevice() = device;
  return Health();
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!Exists(device)) return Say(cudaErrorInvalidDevice);
  const int capability = ComputeCapability();
  *properties = {.name = "emulated GPU",
                 .totalGlobalMem = kDeviceBytes,
                 .major = capability / 10,
                 .minor = capability % 10};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 3;  // few: where blocks share out rows, each has several
      return cudaSuccess;
    // cuDNN's frontend asks. It has to hear of the card that cudnn/backend.cc describes.
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
  }
  return Say(cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!Exists(device)) return Say(cudaErrorInvalidDevice);
  std::snprintf(text, bytes, "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

}  // extern "C"
}  // namespace convene::emulated
