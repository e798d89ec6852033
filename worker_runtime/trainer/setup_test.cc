#include "worker_runtime/trainer/setup.h"

#include <omp.h>

#include <algorithm>

#include "tools/base/cpu_count.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/testing/forwarding_device.h"

namespace convene::worker {
namespace {

// Of regions in the device's host().
int HostThreads(int told) {
  const auto device = OpenAgreedDevice({.device = DeviceChoice::kCpu}, {.host_threads = told});
  REQUIRE_OK(device);
  int threads = 0;
  RunIn((*device)->host(), [&] { threads = omp_get_max_threads(); });
  AwaitAll((*device)->host());
  return threads;
}

// This process has an OMP_NUM_THREADS of 1.
TEST_CASE("the host's own arithmetic has the threads that the agent tells, else OpenMP's") {
  CHECK(HostThreads(0) == 1);
  CHECK(HostThreads(2) == std::min(2, CountUsableCpus()));
  CHECK(HostThreads(1000) == CountUsableCpus());
}

class OlderGpu final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  bool multiplies_float8() const override { return false; }
};

TEST_CASE("a GPU without products of 8-bit floats is refused where the precision is fp8") {
  const std::unique_ptr<Device> cpu = Device::Cpu();
  const OlderGpu older(*cpu);
  CHECK_OK(CheckFloat8({.float8 = true}, *cpu));
  CHECK_OK(CheckFloat8({}, older));
  CHECK_STATUS(CheckFloat8({.float8 = true}, older), absl::StatusCode::kFailedPrecondition,
               "precision fp8 needs a GPU of compute capability 8.9 or later");
}

}  // namespace
}  // namespace convene::worker
