#include "worker_runtime/device/device.h"

#include <omp.h>
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/cgroup_limits.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/host_profile.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/device/waited.h"

namespace convene::worker {
namespace {

// The first `count` pieces of work of a queue; with the calling thread's stream, nothing to wait
// for.
struct QueuePoint final : public Event {
  HostQueue* queue = nullptr;
  uint64_t count = 0;
};

class CpuDevice final : public Device {
 public:
  CpuDevice()
      : description_(absl::StrCat("CPU, ", omp_get_max_threads(),
                                  omp_get_max_threads() == 1 ? " thread" : " threads")) {}
  // A queue's work may wait for the other queue, so neither goes before both are done.
  ~CpuDevice() override { (void)Synchronize(absl::InfiniteDuration()); }

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const std::string& description() const override { return description_; }
  int64_t memory_bytes() const override { return UsableMemoryBytes(); }
  bool multiplies_float8() const override { return true; }
  Memory& memory() override { return HostMemory(); }
  Memory& staging() override { return HostMemory(); }
  Stream& compute() override { return compute_; }
  Stream& communication() override { return communication_; }
  Stream& layer_communication() override { return layer_communication_; }
  Stream& host() override { return host_; }

  void Zero(void* data, size_t bytes, Stream& stream) override {
    if (bytes > 0) RunIn(stream, [=] { std::memset(data, 0, bytes); });
  }
  void Copy(const void* from, void* to, size_t bytes, Stream& stream) override {
    if (bytes > 0) RunIn(stream, [=] { std::memcpy(to, from, bytes); });
  }

  std::unique_ptr<Event> MakeEvent() override { return std::make_unique<QueuePoint>(); }
  void Record(Event& event, Stream& stream) override {
    auto& point = static_cast<QueuePoint&>(event);
    point.queue = stream.host_queue();
    point.count = point.queue != nullptr ? point.queue->pushed() : 0;
  }
  void Order(Event& event, Stream& stream) override {
    const auto& point = static_cast<const QueuePoint&>(event);
    if (point.queue == nullptr || point.queue == stream.host_queue()) return;
    if (point.queue == &host_queue_) {
      RunIn(stream, [queue = point.queue, count = point.count] { queue->Await(count); });
      return;
    }
    // The other two queues hold collectives.
    RunIn(stream, [queue = point.queue, count = point.count] {
      const WaitScope waits;
      queue->Await(count);
    });
  }
  absl::Status Wait(Event& event, absl::Duration timeout) override {
    const auto& point = static_cast<const QueuePoint&>(event);
    if (point.queue == nullptr || point.queue->Await(point.count, timeout)) return status();
    return absl::DeadlineExceededError("the CPU's queued work is not done");
  }
  absl::Status Synchronize(absl::Duration timeout) override {
    QueuePoint end;
    const MonotonicTime deadline = Clock::Real().Now() + timeout;
    for (Stream* stream : {&communication_, &layer_communication_, &host_}) {
      Record(end, *stream);
      CONVENE_RETURN_IF_ERROR(Wait(end, deadline - Clock::Real().Now()));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& /*stream*/, absl::FunctionRef<absl::Status()> /*work*/) override {
    return absl::UnimplementedError(
        "on a CPU ops run when they are called, so nothing can be captured");
  }
  void Launch(Graph& /*graph*/, Stream& /*stream*/) override {
    CONVENE_CHECK(false);  // nobody can have one
  }
  std::unique_ptr<OpProfile> MakeProfile(Stream& stream) override {
    return std::make_unique<HostProfile>(Clock::Real(), stream);
  }
  absl::Status status() override { return absl::OkStatus(); }

 private:
  const std::string description_;
  HostQueue communication_queue_{"communication"};
  HostQueue layer_queue_{"layer comm"};
  HostQueue host_queue_{"host", HostQueue::Regions::kOfAllThreads};
  Stream compute_ = Stream::Cpu();
  Stream communication_ = Stream::Cpu(communication_queue_);
  Stream layer_communication_ = Stream::Cpu(layer_queue_);
  Stream host_ = Stream::Cpu(host_queue_);
};

}  // namespace

std::unique_ptr<Device> Device::Cpu() { return std::make_unique<CpuDevice>(); }

int Device::CudaCount() {
  return linked_gpu_library.count != nullptr ? linked_gpu_library.count() : 0;
}

absl::StatusOr<std::unique_ptr<Device>> Device::Cuda(int ordinal) {
  if (linked_gpu_library.make != nullptr) return linked_gpu_library.make(ordinal);
  return absl::UnimplementedError(
      "this program was built without CUDA: build it with --config=cuda, or use --device cpu");
}

}  // namespace convene::worker
