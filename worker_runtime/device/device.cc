#include "worker_runtime/device/device.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "worker_runtime/device/host_profile.h"
#ifdef CONVENE_CUDA
#include "worker_runtime/device/cuda/cuda_device.h"
#endif

namespace convene::worker {
namespace {

// cgroup v2 says the limit of a container; "max" is no number, and stands for none.
int64_t HostMemoryBytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const absl::StatusOr<std::string> limit = ReadFile("/sys/fs/cgroup/memory.max");
  int64_t limit_bytes = 0;
  if (limit.ok() && absl::SimpleAtoi(*limit, &limit_bytes)) bytes = std::min(bytes, limit_bytes);
  return bytes;
}

class CpuDevice final : public Device {
 public:
  CpuDevice()
      : description_(absl::StrCat("CPU, ", std::thread::hardware_concurrency(), " threads")) {}

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const std::string& description() const override { return description_; }
  int64_t memory_bytes() const override { return HostMemoryBytes(); }
  Memory& memory() override { return HostMemory(); }
  Memory& staging() override { return HostMemory(); }
  Stream& compute() override { return stream_; }
  Stream& communication() override { return stream_; }
  Stream& layer_communication() override { return stream_; }

  void Zero(void* data, size_t bytes, Stream& /*stream*/) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }
  void Copy(const void* from, void* to, size_t bytes, Stream& /*stream*/) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  std::unique_ptr<Event> MakeEvent() override { return std::make_unique<Event>(); }
  void Record(Event& /*event*/, Stream& /*stream*/) override {}
  void Order(Event& /*event*/, Stream& /*stream*/) override {}
  absl::Status Wait(Event& /*event*/, absl::Duration /*timeout*/) override {
    return absl::OkStatus();
  }
  absl::Status Synchronize(absl::Duration /*timeout*/) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& /*stream*/, absl::FunctionRef<absl::Status()> /*work*/) override {
    return absl::UnimplementedError(
        "on a CPU ops run when they are called, so nothing can be captured");
  }
  void Launch(Graph& /*graph*/, Stream& /*stream*/) override {
    CONVENE_CHECK(false);  // nobody can have one
  }
  std::unique_ptr<OpProfile> MakeProfile(Stream& /*stream*/) override {
    return std::make_unique<HostProfile>(Clock::Real());
  }
  absl::Status status() override { return absl::OkStatus(); }

 private:
  const std::string description_;
  Stream stream_ = Stream::Cpu();
};

}  // namespace

std::unique_ptr<Device> Device::Cpu() { return std::make_unique<CpuDevice>(); }

int Device::CudaCount() {
#ifdef CONVENE_CUDA
  return cuda::CudaDeviceCount();
#else
  return 0;
#endif
}

absl::StatusOr<std::unique_ptr<Device>> Device::Cuda(int ordinal) {
#ifdef CONVENE_CUDA
  return cuda::MakeCudaDevice(ordinal);
#else
  return absl::UnimplementedError(absl::StrCat(
      "no GPU ", ordinal,
      ": this program was built without CUDA; build it with --config=cuda, or use --device cpu"));
#endif
}

}  // namespace convene::worker
