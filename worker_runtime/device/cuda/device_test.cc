// A GPU as a Device: memory, copies, order between streams, deadlines, errors.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/host_queue.h"

namespace convene::worker::cuda {
namespace {

using convene::testing::HasGpuOrSkips;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr size_t kBytes = 1 << 20;

std::unique_ptr<Device> FirstGpu() {
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Cuda(0);
  REQUIRE_OK(device);
  return *std::move(device);
}

// Holds a stream until told to go on.
class Gate {
 public:
  explicit Gate(Stream& stream) {
    REQUIRE_CUDA(cudaLaunchHostFunc(stream.queue().stream(), WaitUntilOpen, this));
  }
  ~Gate() { Open(); }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }

 private:
  static void WaitUntilOpen(void* gate_argument) {
    Gate& gate = *static_cast<Gate*>(gate_argument);
    MutexLock lock(&gate.mutex_);
    while (!gate.open_) gate.changed_.Wait(&gate.mutex_);
  }

  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST_CASE("a GPU that is not there is NotFound") {
  const absl::StatusOr<std::unique_ptr<Device>> device = Device::Cuda(4711);
  CHECK_STATUS(device, absl::StatusCode::kNotFound, "GPU");
}

TEST_CASE("a GPU says what it is") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  CHECK(device->kind() == DeviceKind::kCuda);
  CHECK_THAT(device->description(), Catch::Contains("compute capability"));
  CHECK_THAT(device->description(), Catch::Contains("driver "));
  CHECK(device->compute().queue().multiprocessors() > 0);
  CHECK_OK(device->status());
}

TEST_CASE("fresh memory is aligned and holds zeros on the GPU and in staging") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  for (Memory* memory : {&device->memory(), &device->staging()}) {
    const absl::StatusOr<void*> block = memory->Allocate(kBytes + 1);
    REQUIRE_OK(block);
    CHECK(reinterpret_cast<uintptr_t>(*block) % 256 == 0);
    std::vector<char> host(kBytes + 1, 'x');
    device->Copy(*block, host.data(), host.size(), device->compute());
    CHECK(host == std::vector<char>(kBytes + 1, 0));
    memory->Free(*block, kBytes + 1);
  }
  CHECK_OK(device->status());
}

TEST_CASE("a block larger than the GPU is ResourceExhausted, and the device goes on") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  CHECK_STATUS(device->memory().Allocate(size_t{1} << 50), absl::StatusCode::kResourceExhausted,
               "are free");
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK_OK(device->status());
}

TEST_CASE("a copy from ordinary memory is done on return, both ways") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  const absl::StatusOr<void*> block = device->memory().Allocate(kBytes);
  REQUIRE_OK(block);
  std::vector<char> host(kBytes, 'a');
  device->Copy(host.data(), *block, kBytes, device->compute());
  std::memset(host.data(), 'b', kBytes);
  device->Copy(*block, host.data(), kBytes, device->compute());
  CHECK(host == std::vector<char>(kBytes, 'a'));
  device->Zero(*block, kBytes / 2, device->compute());
  device->Copy(*block, host.data(), kBytes, device->compute());
  CHECK(host[kBytes / 2 - 1] == 0);
  CHECK(host[kBytes / 2] == 'a');
  device->memory().Free(*block, kBytes);
  CHECK_OK(device->status());
}

TEST_CASE("a copy from staging memory does not wait for the GPU") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  const absl::StatusOr<void*> block = device->memory().Allocate(kBytes);
  const absl::StatusOr<void*> staging = device->staging().Allocate(kBytes);
  REQUIRE_OK(block);
  REQUIRE_OK(staging);
  Gate gate(device->compute());
  device->Copy(*staging, *block, kBytes, device->compute());  // would hang here
  gate.Open();
  CHECK_OK(device->Synchronize(kPatience));
  device->memory().Free(*block, kBytes);
  device->staging().Free(*staging, kBytes);
}

TEST_CASE("a wait ends at its deadline while the GPU works, and with OK once it is done") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  const std::unique_ptr<Event> event = device->MakeEvent();
  Gate gate(device->compute());
  device->Record(*event, device->compute());
  const MonotonicTime start = Clock::Real().Now();
  CHECK_STATUS(device->Wait(*event, absl::Milliseconds(20)), absl::StatusCode::kDeadlineExceeded,
               "20ms");
  CHECK(Clock::Real().Now() - start >= absl::Milliseconds(20));
  CHECK_STATUS(device->Synchronize(absl::Milliseconds(1)), absl::StatusCode::kDeadlineExceeded,
               "has not finished");
  CHECK(cudaGetLastError() == cudaSuccess);
  gate.Open();
  CHECK_OK(device->Wait(*event, kPatience));
  CHECK_OK(device->Synchronize(kPatience));
}

TEST_CASE("an event orders one stream's work behind another's") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  const absl::StatusOr<void*> block = device->memory().Allocate(kBytes);
  const absl::StatusOr<void*> staging = device->staging().Allocate(2 * kBytes);
  REQUIRE_OK(block);
  REQUIRE_OK(staging);
  char* const source = static_cast<char*>(*staging);
  char* const destination = source + kBytes;
  std::memset(source, 'a', kBytes);
  const std::unique_ptr<Event> written = device->MakeEvent();
  Gate gate(device->compute());
  device->Copy(source, *block, kBytes, device->compute());
  device->Record(*written, device->compute());
  device->Order(*written, device->communication());
  device->Copy(*block, destination, kBytes, device->communication());
  gate.Open();
  CHECK_OK(device->Synchronize(kPatience));
  CHECK(std::vector<char>(destination, destination + kBytes) == std::vector<char>(kBytes, 'a'));
  device->memory().Free(*block, kBytes);
  device->staging().Free(*staging, 2 * kBytes);
}

TEST_CASE("the first error stays, with the name of what was queued") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  Queue& queue = device->compute().queue();
  queue.Report(cudaErrorInvalidValue, "rms_norm_forward");
  queue.Report(CUBLAS_STATUS_INVALID_VALUE, "matmul");
  CHECK_STATUS(device->status(), absl::StatusCode::kInternal, "rms_norm_forward");
  CHECK_STATUS(device->Synchronize(kPatience), absl::StatusCode::kInternal, "rms_norm_forward");
}

TEST_CASE("after an error of the GPU a device still waits for what the host does") {
  if (!HasGpuOrSkips()) return;
  const std::unique_ptr<Device> device = FirstGpu();
  struct Update {
    std::vector<char> state = std::vector<char>(64 * kBytes);
    std::atomic<bool> is_done = false;
  } update;
  device->compute().queue().Report(cudaErrorInvalidValue, "matmul");
  RunIn(device->host(), [&update] {
    std::fill(update.state.begin(), update.state.end(), 'a');
    update.is_done = true;
  });
  CHECK_STATUS(device->Synchronize(kPatience), absl::StatusCode::kInternal, "matmul");
  const bool was_done = update.is_done;
  AwaitAll(device->host());
  CHECK(was_done);
}

struct CountingPlans {
  explicit CountingPlans(Queue& queue) : queue(queue) { ++alive; }
  ~CountingPlans() { --alive; }
  static inline int alive = 0;
  Queue& queue;
};

TEST_CASE("a queue keeps one of each kind of plans, as long as it lives") {
  if (!HasGpuOrSkips()) return;
  std::unique_ptr<Device> device = FirstGpu();
  Queue& queue = device->compute().queue();
  CountingPlans& plans = queue.plans<CountingPlans>();
  CHECK(&queue.plans<CountingPlans>() == &plans);
  CHECK(&plans.queue == &queue);
  CHECK(&device->communication().queue().plans<CountingPlans>() != &plans);
  CHECK(CountingPlans::alive == 2);
  device.reset();
  CHECK(CountingPlans::alive == 0);
}

}  // namespace
}  // namespace convene::worker::cuda
