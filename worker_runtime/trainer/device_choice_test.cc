#include "worker_runtime/trainer/device_choice.h"

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

TEST_CASE("auto takes a GPU where there is one, each rank of a node its own") {
  CHECK(*ChooseDevice(DeviceChoice::kAuto, 0, 3) == std::nullopt);
  CHECK(*ChooseDevice(DeviceChoice::kAuto, 8, 3) == 3);
  CHECK(*ChooseDevice(DeviceChoice::kCuda, 1, 3) == 0);
  CHECK(*ChooseDevice(DeviceChoice::kCpu, 8, 3) == std::nullopt);
}

TEST_CASE("cuda without a GPU says where to look") {
  CHECK_STATUS(ChooseDevice(DeviceChoice::kCuda, 0, 0), absl::StatusCode::kFailedPrecondition,
               "nvidia-smi");
}

TEST_CASE("the precision is bf16 on a GPU and fp32 on a CPU unless one is named") {
  CHECK(ChoosePrecision(std::nullopt, true) == DType::kBFloat16);
  CHECK(ChoosePrecision(std::nullopt, false) == DType::kFloat32);
  CHECK(ChoosePrecision(DType::kFloat32, true) == DType::kFloat32);
}

}  // namespace
}  // namespace convene::worker
