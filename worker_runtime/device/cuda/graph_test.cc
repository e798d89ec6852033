// Work captured as a CUDA graph: when it runs, and the state after a failed capture.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/op_profile.h"

namespace convene::worker::cuda {
namespace {

using convene::testing::HasGpuOrSkips;

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr size_t kBytes = 4096;

// A GPU and a block of its memory.
class Fixture {
 public:
  Fixture() {
    absl::StatusOr<std::unique_ptr<Device>> device = Device::Cuda(0);
    REQUIRE_OK(device);
    device_ = *std::move(device);
    const absl::StatusOr<void*> block = device_->memory().Allocate(kBytes);
    REQUIRE_OK(block);
    block_ = *block;
  }
  ~Fixture() { device_->memory().Free(block_, kBytes); }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  Device& device() { return *device_; }
  Stream& stream() { return device_->compute(); }
  cudaStream_t cuda_stream() { return stream().queue().stream(); }
  void Fill(char value) {
    const std::vector<char> bytes(kBytes, value);
    device_->Copy(bytes.data(), block_, kBytes, stream());
  }
  absl::Status QueueZero() {
    stream().queue().Report(cudaMemsetAsync(block_, 0, kBytes, cuda_stream()), "zero");
    return absl::OkStatus();
  }
  bool IsFilledWith(char value) {
    std::vector<char> bytes(kBytes);
    device_->Copy(block_, bytes.data(), kBytes, stream());
    return bytes == std::vector<char>(kBytes, value);
  }
  absl::StatusOr<std::unique_ptr<Graph>> CaptureZero() {
    return device_->Capture(stream(), [this] { return QueueZero(); });
  }
  // Checks that the stream works and that no error is remembered.
  void CheckGoesOn() {
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_OK(device_->status());
    Fill('c');
    REQUIRE_OK(QueueZero());
    CHECK(IsFilledWith(0));
    const auto graph = CaptureZero();
    REQUIRE_OK(graph);
    Fill('d');
    device_->Launch(**graph, stream());
    CHECK(IsFilledWith(0));
    CHECK_OK(device_->Synchronize(kPatience));
  }

 private:
  std::unique_ptr<Device> device_;
  void* block_ = nullptr;
};

TEST_CASE("a stream's profile sees no op of a graph, and is there again behind the capture") {
  if (!HasGpuOrSkips()) return;
  Fixture gpu;
  REQUIRE_OK(gpu.QueueZero());
  const std::unique_ptr<OpProfile> profile = gpu.device().MakeProfile(gpu.stream());
  gpu.stream().set_profile(profile.get());
  const auto graph = gpu.device().Capture(gpu.stream(), [&gpu] {
    const OpScope scope(gpu.stream(), "zero");
    return gpu.QueueZero();
  });
  REQUIRE_OK(graph);
  CHECK(gpu.stream().profile() == profile.get());
  gpu.Fill('b');
  gpu.device().Launch(**graph, gpu.stream());
  CHECK(gpu.IsFilledWith(0));
  CHECK(profile->Times().empty());
  gpu.stream().set_profile(nullptr);
}

TEST_CASE("what is captured runs at each launch, and not before") {
  if (!HasGpuOrSkips()) return;
  Fixture gpu;
  gpu.Fill('a');
  const auto graph = gpu.CaptureZero();
  REQUIRE_OK(graph);
  CHECK(gpu.IsFilledWith('a'));
  for (int launch = 0; launch < 2; ++launch) {
    gpu.device().Launch(**graph, gpu.stream());
    CHECK(gpu.IsFilledWith(0));
    gpu.Fill('b');
    CHECK(gpu.IsFilledWith('b'));
  }
  CHECK_OK(gpu.device().status());
}

TEST_CASE("an op that cannot be captured is named, and the stream goes on") {
  if (!HasGpuOrSkips()) return;
  Fixture gpu;
  CHECK_STATUS(gpu.device().Capture(gpu.stream(),
                                    [&] {
                                      (void)gpu.QueueZero();
                                      gpu.stream().queue().Report(
                                          cudaStreamSynchronize(gpu.cuda_stream()),
                                          "op that waits");
                                      return gpu.QueueZero();
                                    }),
               absl::StatusCode::kInternal, "op that waits");
  gpu.CheckGoesOn();
}

TEST_CASE("an op that allocates cannot be captured") {
  if (!HasGpuOrSkips()) return;
  Fixture gpu;
  void* memory = nullptr;
  CHECK_STATUS(gpu.device().Capture(gpu.stream(),
                                    [&] {
                                      gpu.stream().queue().Report(cudaMalloc(&memory, kBytes),
                                                                  "op that allocates");
                                      return absl::OkStatus();
                                    }),
               absl::StatusCode::kInternal, "op that allocates");
  CHECK(memory == nullptr);
  gpu.CheckGoesOn();
}

TEST_CASE("an error of the captured work comes back, and the stream goes on") {
  if (!HasGpuOrSkips()) return;
  Fixture gpu;
  CHECK_STATUS(gpu.device().Capture(gpu.stream(),
                                    [&] {
                                      (void)gpu.QueueZero();
                                      return absl::ResourceExhaustedError("no memory");
                                    }),
               absl::StatusCode::kResourceExhausted, "no memory");
  gpu.CheckGoesOn();
}

TEST_CASE("a graph that is destroyed before it ran still runs") {
  if (!HasGpuOrSkips()) return;
  Fixture gpu;
  auto graph = gpu.CaptureZero();
  REQUIRE_OK(graph);
  gpu.Fill('a');
  gpu.device().Launch(**graph, gpu.stream());
  graph->reset();
  CHECK(gpu.IsFilledWith(0));
  CHECK_OK(gpu.device().Synchronize(kPatience));
}

}  // namespace
}  // namespace convene::worker::cuda
