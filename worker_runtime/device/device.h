// One processor that trains: its memory, its streams, and the events that order work between
// streams and with the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_runtime/device/op_profile.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// Gives and takes back large blocks; an Arena stands on one.
class Memory {
 public:
  virtual ~Memory() = default;
  // At least `bytes` > 0 of zeros, at a multiple of 256 bytes (HostMemory: 2 MiB from 4 MiB on).
  // ResourceExhausted when there is no such block; the text says how much there was, where known.
  virtual absl::StatusOr<void*> Allocate(size_t bytes) = 0;
  // REQUIRES: Allocate gave `data` for as many bytes, and no queued work still uses it.
  virtual void Free(void* data, size_t bytes) = 0;
};

// The host's own memory: mmap, huge pages where the kernel has them.
Memory& HostMemory();

// A point in a stream. Made by a device, used with its streams.
class Event {
 public:
  virtual ~Event() = default;
};

// Work of one stream, captured once and queued as a whole from then on. Made by a device. Borrows
// the memory that the work reads and writes; may be destroyed while it still runs.
class Graph {
 public:
  virtual ~Graph() = default;
};

// Calls may come from any thread, with streams that no other thread uses at the moment. A device
// outlives all objects that it made.
class Device {
 public:
  virtual ~Device() = default;

  // The calling process's CPU: memory is HostMemory(). compute() is the calling thread: its work is
  // done on return, and Order there waits. The other streams are threads with queues
  // (host_queue.h), started when they are first given work; the destructor waits for all of it.
  static std::unique_ptr<Device> Cpu();

  // The GPU number `ordinal` of those that CUDA shows this process. Unimplemented in a program
  // without cuda/cuda_device.cc (built without --config=cuda); NotFound when there is no such GPU
  // or no driver, with CUDA's words; FailedPrecondition when the driver is too old for the program,
  // or the program was not built for the card.
  static absl::StatusOr<std::unique_ptr<Device>> Cuda(int ordinal);

  // How many GPUs CUDA shows this process; 0 without a driver, and in a program without
  // cuda/cuda_device.cc.
  static int CudaCount();

  virtual DeviceKind kind() const = 0;
  // "NVIDIA H200, 139.7 GiB, compute capability 9.0, driver 580.95"; "CPU, 2 threads": they share
  // each op.
  virtual const std::string& description() const = 0;
  // All the memory that there is, in use or not: the GPU's, or the host's, where a container may
  // have less than the machine.
  virtual int64_t memory_bytes() const = 0;

  // Whether it multiplies 8-bit floats (ops/float8.h): CPUs do, and GPUs from compute
  // capability 8.9 on.
  virtual bool multiplies_float8() const = 0;

  // Where ops read and write.
  virtual Memory& memory() = 0;
  // Host memory from which and into which Copy is asynchronous (page-locked).
  virtual Memory& staging() = 0;

  // Where the step's arithmetic is queued.
  virtual Stream& compute() = 0;
  // A second queue, of higher priority, for collectives that run beside it.
  virtual Stream& communication() = 0;
  // A third one, as urgent, for collectives inside a layer: they would else wait in communication()
  // behind whole buckets of gradients.
  virtual Stream& layer_communication() = 0;
  // The host's own arithmetic beside the device's, over memory of staging(): a CPU's queue on every
  // device, whose ops have the process's threads, or as many as SetThreads (host_queue.h) says. Of
  // a GPU no other stream can be ordered with it, but by the host's Wait.
  virtual Stream& host() = 0;

  // `data` in this device's memory.
  virtual void Zero(void* data, size_t bytes, Stream& stream) = 0;
  // Between this device's memory and the host's, in any direction. Memory stays unchanged until the
  // copy is done; on a GPU it is done on return where the host's memory is not from staging().
  virtual void Copy(const void* from, void* to, size_t bytes, Stream& stream) = 0;

  virtual std::unique_ptr<Event> MakeEvent() = 0;
  // The event becomes "all that is queued in `stream` by now".
  virtual void Record(Event& event, Stream& stream) = 0;
  // Work queued in `stream` from now on waits for the event.
  virtual void Order(Event& event, Stream& stream) = 0;
  // The host waits. DeadlineExceeded after `timeout`; else status().
  virtual absl::Status Wait(Event& event, absl::Duration timeout) = 0;
  // The host waits for all streams, also after an error in one of them: on return host() is idle
  // unless `timeout` is over. DeadlineExceeded after `timeout`; else status().
  virtual absl::Status Synchronize(absl::Duration timeout) = 0;

  // Calls `work`, which queues ops in `stream`, and keeps them as a graph: nothing of them runs
  // yet. Unimplemented on a CPU, where there is no queue. Else the error of `work`, or of the first
  // op or library call that cannot be captured; then the stream goes on as if Capture had not been
  // called, and status() stays OK. REQUIRES: the same `work` has run before, so that its ops have
  // built their algorithms, plans and scratch; it waits for nothing, uses no other stream and no
  // event. The stream's OpProfile sees none of these ops, now and when the graph runs.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& stream, absl::FunctionRef<absl::Status()> work) = 0;
  // Queues the captured work, with the addresses that it had then. `stream` is of this device.
  virtual void Launch(Graph& graph, Stream& stream) = 0;

  // For the ops of `stream`, one of those above: by the clock on a CPU, by events on a GPU.
  virtual std::unique_ptr<OpProfile> MakeProfile(Stream& stream) = 0;

  // The first error of any work queued so far that is known by now: Internal, with the name of the
  // op or library call and CUDA's or the library's words. It stays: a GPU context does not come
  // back.
  virtual absl::Status status() = 0;
};

// Device::Cuda and Device::CudaCount of a program that is linked with a library for GPUs, which
// sets it before main(); null in any other program. So all other code is compiled once for both.
struct GpuLibrary {
  absl::StatusOr<std::unique_ptr<Device>> (*make)(int ordinal) = nullptr;
  int (*count)() = nullptr;
};
inline constinit GpuLibrary linked_gpu_library;

}  // namespace convene::worker
