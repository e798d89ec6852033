// The state that the runtime's files share: streams, events, graphs, memory, and the failure that
// stays.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/base/mutex.h"
#include "tools/base/thread.h"
#include "worker_runtime/device/emulated/grid.h"
#include "worker_runtime/device/emulated/library.h"
#include "worker_runtime/device/emulated/sanitizers.h"

namespace convene::emulated {

// A point in a stream, which an event names.
struct Record {
  cudaStream_t stream = nullptr;
  bool is_done = false;
  std::chrono::steady_clock::time_point time;
  char clock = 0;  // Published by the stream
};

// A host function, in a thread of its own.
struct HostCall {
  bool is_done = false;
  Thread thread;
};

struct Operation {
  enum class Kind { kWork, kHostFunction, kRecord, kWait, kMeeting };
  Kind kind = Kind::kWork;
  std::function<void()> work;
  // Of kMeeting: asked, from the moment at which the stream comes to it, until it returns true.
  std::function<bool()> meet;
  std::shared_ptr<Record> record;       // of kRecord and kWait
  std::unique_ptr<HostCall> host_call;  // of kHostFunction, once it runs
  char clock = 0;                       // Published by the thread that queued it
};

struct Block {
  size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeUnregistered;
  int device = 0;
};

}  // namespace convene::emulated

struct CUgraph_st {
  std::vector<std::function<void()>> work;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<std::function<void()>>> work;
};
struct CUstream_st {
  int device = 0;
  std::deque<convene::emulated::Operation> operations;
  bool is_running = false;    // its first operation
  bool is_destroyed = false;  // but its work was not done
  convene::emulated::Actor actor;
  std::unique_ptr<CUgraph_st> capture;
  bool capture_is_invalid = false;
};
struct CUevent_st {
  int device = 0;
  bool has_time = false;
  std::shared_ptr<convene::emulated::Record> last;
};

namespace convene::emulated {

// The process has one. Every function of the runtime first locks `mutex`; work runs under it, from
// behind std::function, where the thread-safety analysis cannot follow.
struct State {
  State();

  Mutex mutex;
  CondVar changed;  // A stream that had to wait may go on.
  Order order = OrderFromEnvironment();
  std::string failure;               // of the first launch that failed
  std::vector<size_t> device_bytes;  // by device
  std::vector<size_t> pool_bytes;    // by device: freed in stream order, and not given back yet
  std::vector<std::unique_ptr<CUstream_st>> streams;  // the devices' default streams first
  std::map<const char*, Block> memory;
  std::map<const void*, size_t> dynamic_shared_max;  // by kernel
  size_t turn = 0;                                   // which other stream runs next in kRandom
};
State& TheState();

// Makes `error` the answer of cudaGetLastError() in this thread; returns it.
cudaError_t Say(cudaError_t error);
// cudaErrorLaunchFailure once a launch failed.
cudaError_t Health();

// The calling thread's.
int& CurrentDevice();
// Takes device memory back at once, where cudaFree would wait.
cudaError_t FreeNow(void* data);

// The stream that the calling thread captures; null for none.
cudaStream_t& Capturing();
// Called by functions that no capture allows: cudaErrorStreamCaptureUnsupported, and the capture is
// lost.
bool SpoilsCapture();

// The stream itself, or the current device's default stream for null.
cudaStream_t Resolve(cudaStream_t stream);
// Adds the operation to the stream, or to the graph that the stream captures.
cudaError_t Enqueue(cudaStream_t stream, Operation operation);
// Runs all operations of the stream that can run; returns whether all are done.
bool RunAll(cudaStream_t stream);
// The same until `is_reached`, which an operation in the stream sets; returns it.
bool RunUntil(cudaStream_t stream, const bool& is_reached);
// Waits for host functions and other threads' streams too, for which it lets go of the mutex.
void Finish(cudaStream_t stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(TheState().mutex);
// All streams of the current device.
void FinishAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(TheState().mutex);

}  // namespace convene::emulated
