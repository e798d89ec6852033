#include "worker_runtime/trainer/device_choice.h"

#include "absl/status/status.h"

namespace convene::worker {

absl::StatusOr<std::optional<int>> ChooseDevice(DeviceChoice choice, int gpus, int local_rank) {
  if (choice == DeviceChoice::kCpu) return std::optional<int>();
  if (gpus > 0) return std::optional<int>(local_rank % gpus);
  if (choice == DeviceChoice::kAuto) return std::optional<int>();
  return absl::FailedPreconditionError(
      "device is cuda, but CUDA shows this process no GPU: look at nvidia-smi and at "
      "CUDA_VISIBLE_DEVICES, build with --config=cuda, or use --device cpu");
}

DType ChoosePrecision(std::optional<DType> precision, bool is_gpu) {
  return precision.value_or(is_gpu ? DType::kBFloat16 : DType::kFloat32);
}

}  // namespace convene::worker
