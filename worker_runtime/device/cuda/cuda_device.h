// One GPU as a Device (../device.h). A program that links this library has Device::Cuda.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker_runtime/device/device.h"

namespace convene::worker::cuda {

// Device::Cuda; its contract stands there. Makes the GPU the
// calling thread's current device; another thread that queues ops calls cudaSetDevice first (the
// device's own functions do it themselves).
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int ordinal);

}  // namespace convene::worker::cuda
