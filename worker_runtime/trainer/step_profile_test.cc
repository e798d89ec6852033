#include "worker_runtime/trainer/step_profile.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/device/side_stream.h"
#include "worker_runtime/parallel/linear.h"
#include "worker_runtime/testing/forwarding_device.h"

namespace convene::worker {
namespace {

TEST_CASE("a profile groups the ops, the longest first, and says what is in none") {
  const std::vector<OpTime> times = {{"RmsNormForward", 4, 0.01},   {"MatMul", 8, 0.05},
                                     {"AttentionForward", 2, 0.02}, {"SwigluForward", 2, 0.015},
                                     {"AdamW", 2, 0.001},           {"communication/tp", 2, 0.002}};
  CHECK(ProfileText(times, {}, 2, 0.1) ==
        "profile of 2 steps         ms a step   share\n"
        "products                       25.00   50.0%\n"
        "  MatMul                       25.00   50.0%\n"
        "memory-bound                   12.50   25.0%\n"
        "  SwigluForward                 7.50   15.0%\n"
        "  RmsNormForward                5.00   10.0%\n"
        "attention                      10.00   20.0%\n"
        "  AttentionForward             10.00   20.0%\n"
        "communication                   1.00    2.0%\n"
        "  tp                            1.00    2.0%\n"
        "optimizer                       0.50    1.0%\n"
        "  AdamW                         0.50    1.0%\n"
        "gaps                            1.00    2.0%\n"
        "step                           50.00\n");
}

TEST_CASE("communication beside the ops is told behind the step, and is no part of its sum") {
  CHECK(ProfileText({{"MatMul", 1, 0.09}},
                    {{"communication/dp", 1, 0.01}, {"communication/tp", 4, 0.03}}, 1, 0.1) ==
        "profile of 1 steps         ms a step   share\n"
        "products                       90.00   90.0%\n"
        "  MatMul                       90.00   90.0%\n"
        "gaps                           10.00   10.0%\n"
        "step                          100.00\n"
        "communication, beside          40.00   40.0%\n"
        "  tp                           30.00   30.0%\n"
        "  dp                           10.00   10.0%\n");
}

TEST_CASE("no steps, no profile") { CHECK(ProfileText({{"MatMul", 1, 1}}, {}, 0, 1).empty()); }

// As a GPU: collectives inside a layer have a stream of their own.
class TwoStreams final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Stream& layer_communication() override { return layer_; }

 private:
  Stream layer_ = Stream::Cpu();
};

// A tensor-parallel layer's backward pass of a group of one.
absl::Status Backward(Device& device, Collective& tp) {
  SideStream side(device);
  const float x[] = {1}, weight[] = {2}, dy[] = {3};
  float dx[1], dweight[1];
  return ColumnParallelBackward({1, 1, 1}, x, weight, dy, dx, {.data = dweight, .adds = false},
                                ResidualRows(1, 1, /*is_split=*/false, tp), &side,
                                device.compute());
}

TEST_CASE("the sums of a tensor-parallel backward pass are in the profile") {
  const std::unique_ptr<Device> cpu = Device::Cpu();
  TwoStreams device(*cpu);
  const CommunicatorSet set = std::move(LoopbackCommunicators({})[0]);
  StepProfile profile(device);
  REQUIRE_OK(Backward(device, *set.tp));
  CHECK(profile.Text(1, 1).find("  tp") == std::string::npos);  // nobody watches yet
  profile.Watch(true);
  REQUIRE_OK(Backward(device, *set.tp));
  const std::string text = profile.Text(1, 1);
  INFO(text);
  const size_t beside = text.find("communication, beside");
  REQUIRE(beside != std::string::npos);
  CHECK(text.find("  MatMul") < beside);
  CHECK(text.find("  tp", beside) != std::string::npos);
}

}  // namespace
}  // namespace convene::worker
