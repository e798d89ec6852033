// Stands for CUDA's header of that name where the `.cu` files are compiled for the emulated GPU
// (../README.md): the parts that Convene uses, with CUDA's names, values and errors.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "worker_runtime/device/emulated/kernel.h"

// NOLINTBEGIN: CUDA's names

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline

// ---- vectors
// -------------------------------------------------------------------------------------

struct alignas(8) uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

// ---- device functions
// ----------------------------------------------------------------------------

#define CONVENE_HERE convene::emulated::Location at = convene::emulated::Location::current()

inline void __syncthreads(CONVENE_HERE) { convene::emulated::SyncThreads(at); }
inline void __syncwarp(unsigned int mask = 0xffffffffu, CONVENE_HERE) {
  convene::emulated::SyncWarp(mask, at);
}
template <typename T>
T __shfl_sync(unsigned int mask, T value, int lane, int width = 32, CONVENE_HERE) {
  return Shuffle(convene::emulated::Exchange::kFromLane, mask, value, lane, width, at);
}
template <typename T>
T __shfl_xor_sync(unsigned int mask, T value, int flip, int width = 32, CONVENE_HERE) {
  return Shuffle(convene::emulated::Exchange::kFromXor, mask, value, flip, width, at);
}
template <typename T>
T __shfl_down_sync(unsigned int mask, T value, unsigned int by, int width = 32, CONVENE_HERE) {
  return Shuffle(convene::emulated::Exchange::kFromAbove, mask, value, static_cast<int>(by), width,
                 at);
}
template <typename T>
T __shfl_up_sync(unsigned int mask, T value, unsigned int by, int width = 32, CONVENE_HERE) {
  return Shuffle(convene::emulated::Exchange::kFromBelow, mask, value, static_cast<int>(by), width,
                 at);
}
inline unsigned int __ballot_sync(unsigned int mask, int predicate, CONVENE_HERE) {
  return static_cast<unsigned int>(convene::emulated::ExchangeInWarp(
      convene::emulated::Exchange::kBallot, mask, predicate != 0 ? 1 : 0, 0, 32, at));
}
inline int __any_sync(unsigned int mask, int predicate, CONVENE_HERE) {
  return __ballot_sync(mask, predicate, at) != 0;
}
inline int __all_sync(unsigned int mask, int predicate, CONVENE_HERE) {
  return __ballot_sync(mask, predicate == 0, at) == 0;
}
#undef CONVENE_HERE

// The accesses that a GPU makes as one: aligned to their size.
template <typename T>
T __ldg(const T* from) {
  convene::emulated::CheckAligned(from, sizeof(T));
  return *from;
}
template <typename T>
void __stwb(T* to, T value) {
  convene::emulated::CheckAligned(to, sizeof(T));
  *to = value;
}

// Blocks may run on several threads of the host.
inline unsigned int atomicMax(unsigned int* at, unsigned int value) {
  const std::atomic_ref<unsigned int> place(*at);
  unsigned int before = place.load();
  while (before < value && !place.compare_exchange_weak(before, value)) {
  }
  return before;
}

inline int __popc(unsigned int x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned int>(x)); }
inline float __uint_as_float(unsigned int bits) { return std::bit_cast<float>(bits); }
inline unsigned int __float_as_uint(float x) { return std::bit_cast<unsigned int>(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline int min(int x, int y) { return std::min(x, y); }
inline int max(int x, int y) { return std::max(x, y); }

namespace convene::emulated {
// PTX's ex2.approx.ftz.f32: subnormals, on both sides, are zero.
inline float Ex2ApproxFtz(float x) {
  const auto flushed = [](float y) { return std::fpclassify(y) == FP_SUBNORMAL ? 0.0f : y; };
  return flushed(std::exp2(flushed(x)));
}
}  // namespace convene::emulated

// ---- the runtime
// ---------------------------------------------------------------------------------

#define CUDART_VERSION 13000

// As in CUDA a tag with a typedef: what is compiled with CUDA's own header then links.
enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
};
typedef enum cudaError cudaError_t;
extern "C" {
const char* cudaGetErrorName(cudaError_t error);
// For cudaErrorLaunchFailure: the kernel's violation, in words.
const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major;
  int minor;
};
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest);

enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
struct cudaPointerAttributes {
  cudaMemoryType type;
};
inline constexpr unsigned int cudaHostAllocPortable = 1;
cudaError_t cudaMalloc(void** data, size_t bytes);
cudaError_t cudaFree(void* data);
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream);
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int flags);
cudaError_t cudaFreeHost(void* data);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemset(void* data, int value, size_t bytes);

inline constexpr unsigned int cudaStreamNonBlocking = 1;
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*work)(void*), void* argument);

inline constexpr unsigned int cudaEventDisableTiming = 2;
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1, cudaStreamCaptureModeRelaxed };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated
};
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
typedef struct CUgraphNode_st* cudaGraphNode_t;
struct cudaGraphEdgeData;
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* dependency_count);
typedef struct CUuserObject_st* cudaUserObject_t;
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* payload, void (*destroy)(void*),
                                 unsigned int references, unsigned int flags);
cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int references);
cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                      unsigned int references, unsigned int flags);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags);
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
}  // extern "C"

// ---- launches
// ------------------------------------------------------------------------------------

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

namespace convene::emulated {
cudaError_t SetDynamicSharedBytesMax(const void* kernel, int bytes);
// `thread` is one thread's work.
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::function<void()> thread);

// A launch written kernel<<<blocks, threads, dynamic_bytes, stream>>>(arguments...).
template <typename... Parameters>
auto Chevron(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t dynamic_bytes = 0,
             cudaStream_t stream = nullptr) {
  return [=](Parameters... arguments) {
    (void)LaunchKernel({blocks, threads, dynamic_bytes, stream},
                       reinterpret_cast<const void*>(kernel), [=] { kernel(arguments...); });
  };
}
}  // namespace convene::emulated

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  return convene::emulated::LaunchKernel(*config, reinterpret_cast<const void*>(kernel),
                                         [=] { kernel(arguments...); });
}
template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute /*attribute*/,
                                 int value) {
  return convene::emulated::SetDynamicSharedBytesMax(reinterpret_cast<const void*>(kernel), value);
}

// NOLINTEND
