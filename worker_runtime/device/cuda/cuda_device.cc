// One GPU as a Device (../device.h).
#include <cuda_runtime.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/device/cuda/cards.h"
#include "worker_runtime/device/cuda/cuda_profile.h"
#include "worker_runtime/device/cuda/first_error.h"
#include "worker_runtime/device/cuda/graph.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/wait.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/host_profile.h"
#include "worker_runtime/device/host_queue.h"

namespace convene::worker::cuda {
namespace {

class DeviceMemory : public Memory {
 public:
  DeviceMemory(int ordinal, FirstError& first_error)
      : ordinal_(ordinal), first_error_(first_error) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    CONVENE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();  // it is told here, not at the next launch
      return absl::ResourceExhaustedError(absl::StrCat("GPU ", ordinal_, " has no block of ",
                                                       HumanBytes(static_cast<double>(bytes)),
                                                       Available()));
    }
    CONVENE_RETURN_IF_ERROR(CudaStatus(error, "cudaMalloc"));
    // Our streams do not wait for the default stream, so the host does.
    absl::Status zeroed = CudaStatus(cudaMemsetAsync(data, 0, bytes, nullptr), "cudaMemsetAsync");
    if (zeroed.ok()) zeroed = CudaStatus(cudaStreamSynchronize(nullptr), "zeroing new memory");
    if (!zeroed.ok()) {
      Free(data, bytes);
      return zeroed;
    }
    return data;
  }

  void Free(void* data, size_t /*bytes*/) override {
    first_error_.Report(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
    first_error_.Report(CudaStatus(cudaFree(data), "cudaFree"));
  }

 private:
  static std::string Available() {
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return "";
    return absl::StrCat(": ", HumanBytes(static_cast<double>(free_bytes)), " of its ",
                        HumanBytes(static_cast<double>(total_bytes)),
                        " are free; nvidia-smi shows which processes hold the rest");
  }

  const int ordinal_;
  FirstError& first_error_;
};

class StagingMemory : public Memory {
 public:
  StagingMemory(int ordinal, FirstError& first_error)
      : ordinal_(ordinal), first_error_(first_error) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    CONVENE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return absl::ResourceExhaustedError(
          absl::StrCat("no ", HumanBytes(static_cast<double>(bytes)),
                       " of page-locked host memory: is the host's memory full, or the container's "
                       "limit reached?"));
    }
    CONVENE_RETURN_IF_ERROR(CudaStatus(error, "cudaHostAlloc"));
    std::memset(data, 0, bytes);
    return data;
  }

  void Free(void* data, size_t /*bytes*/) override {
    first_error_.Report(CudaStatus(cudaSetDevice(ordinal_), "cudaSetDevice"));
    first_error_.Report(CudaStatus(cudaFreeHost(data), "cudaFreeHost"));
  }

 private:
  const int ordinal_;
  FirstError& first_error_;
};

class CudaEvent : public Event {
 public:
  // `event` may be null, after an error that was reported.
  CudaEvent(cudaEvent_t event, FirstError& first_error)
      : event_(event), first_error_(first_error) {}
  ~CudaEvent() override {
    if (event_ == nullptr) return;
    first_error_.Report(CudaStatus(cudaEventDestroy(event_), "cudaEventDestroy"));
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  cudaEvent_t get() const { return event_; }

  // Where it was recorded last in the host's stream: the first `count` pieces of that queue.
  HostQueue* queue = nullptr;
  uint64_t count = 0;

 private:
  const cudaEvent_t event_;
  FirstError& first_error_;
};

// Of an event that was recorded in a GPU's stream.
cudaEvent_t Handle(const Event& event) {
  const auto& on_gpu = static_cast<const CudaEvent&>(event);
  CONVENE_CHECK(on_gpu.queue == nullptr);
  return on_gpu.get();
}

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, std::string description, int64_t memory_bytes, bool multiplies_float8)
      : ordinal_(ordinal),
        description_(std::move(description)),
        memory_bytes_(memory_bytes),
        multiplies_float8_(multiplies_float8),
        memory_(ordinal, first_error_),
        staging_(ordinal, first_error_) {}
  // Queues are destroyed on their device.
  ~CudaDevice() override { MakeCurrent(); }

  // Call it once, before any other function.
  absl::Status MakeQueues() {
    int lowest_priority = 0;
    int highest_priority = 0;
    CONVENE_RETURN_IF_ERROR(
        CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest_priority, &highest_priority),
                   "cudaDeviceGetStreamPriorityRange"));
    CONVENE_ASSIGN_OR_RETURN(compute_queue_, Queue::Create(lowest_priority, first_error_));
    CONVENE_ASSIGN_OR_RETURN(communication_queue_, Queue::Create(highest_priority, first_error_));
    CONVENE_ASSIGN_OR_RETURN(layer_queue_, Queue::Create(highest_priority, first_error_));
    compute_ = Stream::Cuda(*compute_queue_);
    communication_ = Stream::Cuda(*communication_queue_);
    // Updates run there beside products. Half of the multiprocessors read and write as much as the
    // memory gives (an estimate, measured on no GPU); products have the rest.
    communication_.set_left_free(communication_queue_->multiprocessors() / 2);
    layer_communication_ = Stream::Cuda(*layer_queue_);
    return absl::OkStatus();
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const std::string& description() const override { return description_; }
  int64_t memory_bytes() const override { return memory_bytes_; }
  bool multiplies_float8() const override { return multiplies_float8_; }
  Memory& memory() override { return memory_; }
  Memory& staging() override { return staging_; }
  Stream& compute() override { return compute_; }
  Stream& communication() override { return communication_; }
  Stream& layer_communication() override { return layer_communication_; }
  Stream& host() override { return host_; }

  void Zero(void* data, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    MakeCurrent();
    Report(cudaMemsetAsync(data, 0, bytes, stream.queue().stream()), "zero");
  }

  void Copy(const void* from, void* to, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    MakeCurrent();
    const cudaStream_t queue = stream.queue().stream();
    Report(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue), "copy");
    // For such memory cudaMemcpyAsync may or may not have waited (CUDA Runtime API, "API
    // synchronization behavior").
    if (IsPageable(from) || IsPageable(to)) Report(cudaStreamSynchronize(queue), "copy");
  }

  std::unique_ptr<Event> MakeEvent() override {
    MakeCurrent();
    cudaEvent_t event = nullptr;
    Report(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return std::make_unique<CudaEvent>(event, first_error_);
  }

  void Record(Event& event, Stream& stream) override {
    auto& point = static_cast<CudaEvent&>(event);
    point.queue = stream.host_queue();
    if (point.queue != nullptr) {
      point.count = point.queue->pushed();
      return;
    }
    MakeCurrent();
    Report(cudaEventRecord(Handle(event), stream.queue().stream()), "cudaEventRecord");
  }

  void Order(Event& event, Stream& stream) override {
    MakeCurrent();
    OpProfile* const profile = stream.profile();
    if (profile != nullptr) profile->BeginWait();
    Report(cudaStreamWaitEvent(stream.queue().stream(), Handle(event), 0), "cudaStreamWaitEvent");
    if (profile != nullptr) profile->EndWait();
  }

  absl::Status Wait(Event& event, absl::Duration timeout) override {
    const auto& point = static_cast<const CudaEvent&>(event);
    if (point.queue != nullptr) {
      if (point.queue->Await(point.count, timeout)) return status();
      return absl::DeadlineExceededError("the host has not finished its part of the step");
    }
    MakeCurrent();
    const absl::Status done = WaitFor(Handle(event), timeout);
    if (absl::IsDeadlineExceeded(done)) return Annotate(done, description_);
    first_error_.Report(done);
    return status();
  }

  // An error of the GPU ends no work of the host, and a GPU that hangs takes none of its time.
  absl::Status Synchronize(absl::Duration timeout) override {
    const MonotonicTime deadline = Clock::Real().Now() + timeout;
    absl::Status first;
    for (Stream* stream : {&host_, &compute_, &communication_, &layer_communication_}) {
      const std::unique_ptr<Event> event = MakeEvent();
      Record(*event, *stream);
      first.Update(Wait(*event, deadline - Clock::Real().Now()));
    }
    return first;
  }

  absl::StatusOr<std::unique_ptr<Graph>> Capture(Stream& stream,
                                                 absl::FunctionRef<absl::Status()> work) override {
    MakeCurrent();
    // Its events would become part of the graph.
    OpProfile* const profile = stream.profile();
    stream.set_profile(nullptr);
    absl::StatusOr<std::unique_ptr<Graph>> graph = CudaGraph::Capture(stream.queue(), work);
    stream.set_profile(profile);
    return graph;
  }

  void Launch(Graph& graph, Stream& stream) override {
    MakeCurrent();
    static_cast<CudaGraph&>(graph).Launch(stream.queue());
  }

  std::unique_ptr<OpProfile> MakeProfile(Stream& stream) override {
    if (stream.kind() == DeviceKind::kCpu) {
      return std::make_unique<HostProfile>(Clock::Real(), stream);
    }
    return std::make_unique<CudaProfile>(stream.queue());
  }
  absl::Status status() override { return first_error_.status(); }

 private:
  // Each thread has a current CUDA device of its own.
  void MakeCurrent() { Report(cudaSetDevice(ordinal_), "cudaSetDevice"); }
  void Report(cudaError_t error, const char* what) {
    if (error != cudaSuccess) first_error_.Report(CudaStatus(error, what));
  }

  // Whether this is host memory that CUDA does not know.
  bool IsPageable(const void* data) {
    cudaPointerAttributes attributes = {};
    Report(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    return attributes.type == cudaMemoryTypeUnregistered;
  }

  const int ordinal_;
  const std::string description_;
  const int64_t memory_bytes_;
  const bool multiplies_float8_;
  FirstError first_error_;  // before all that reports to it
  DeviceMemory memory_;
  StagingMemory staging_;
  std::unique_ptr<Queue> compute_queue_;
  std::unique_ptr<Queue> communication_queue_;
  std::unique_ptr<Queue> layer_queue_;
  Stream compute_ = Stream::Cpu();  // until MakeQueues
  Stream communication_ = Stream::Cpu();
  Stream layer_communication_ = Stream::Cpu();
  HostQueue host_queue_{"host", HostQueue::Regions::kOfAllThreads};
  Stream host_ = Stream::Cpu(host_queue_);
};

// "580.95.05", or the CUDA version that the driver supports where the module names none.
std::string DriverVersion(int supported_cuda) {
  const absl::StatusOr<std::string> module = ReadFile("/sys/module/nvidia/version");
  if (module.ok()) return std::string(absl::StripSuffix(*module, "\n"));
  return absl::StrFormat("for CUDA %d.%d", supported_cuda / 1000, supported_cuda % 1000 / 10);
}

// OK when there is a GPU of that number and this program can use it.
absl::Status CheckOrdinal(int ordinal, int supported_cuda) {
  if (supported_cuda == 0) {
    return absl::NotFoundError(
        "no NVIDIA driver here (libcuda.so.1 not found): in a container, was it started with its "
        "GPUs?");
  }
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the NVIDIA driver %s is too old for this program, which is built with CUDA %d.%d: update "
        "the driver",
        DriverVersion(supported_cuda), CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10));
  }
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return absl::NotFoundError(CudaStatus(error, "no usable GPU").message());
  }
  if (ordinal < 0 || ordinal >= devices) {
    return absl::NotFoundError(absl::StrCat("there is no GPU ", ordinal, ": CUDA shows ", devices,
                                            " here (see CUDA_VISIBLE_DEVICES and nvidia-smi)"));
  }
  return absl::OkStatus();
}

int CudaDeviceCount() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

// Device::Cuda. Makes the GPU the calling thread's current device; another thread that queues ops
// calls cudaSetDevice first (the device's own functions do it themselves).
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int ordinal) {
  int supported_cuda = 0;  // stays 0 without a driver
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaDriverGetVersion(&supported_cuda), "cudaDriverGetVersion"));
  CONVENE_RETURN_IF_ERROR(CheckOrdinal(ordinal, supported_cuda));
  CONVENE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "cudaSetDevice"));
  cudaDeviceProp properties = {};
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties"));
  CONVENE_RETURN_IF_ERROR(
      CheckCard(properties.name, properties.major, properties.minor, BuiltArchs()));
  auto device = std::make_unique<CudaDevice>(
      ordinal,
      absl::StrFormat("%s, %s, compute capability %d.%d, driver %s", properties.name,
                      HumanBytes(static_cast<double>(properties.totalGlobalMem)), properties.major,
                      properties.minor, DriverVersion(supported_cuda)),
      static_cast<int64_t>(properties.totalGlobalMem),
      std::pair(properties.major, properties.minor) >= std::pair(8, 9));
  CONVENE_RETURN_IF_ERROR(device->MakeQueues());
  return device;
}

[[maybe_unused]] const bool is_linked = [] {
  linked_gpu_library = {.make = MakeCudaDevice, .count = CudaDeviceCount};
  return true;
}();

}  // namespace
}  // namespace convene::worker::cuda
