// PURE. How much of a GPU's arithmetic a training uses: MFU, in the two conventions of TokenFlops.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/planner/counts.h"
#include "worker_runtime/planner/hardware.h"

namespace convene::worker {

// The table's GPU that a driver's name means ("NVIDIA H100 80GB HBM3"); none for a card that the
// table does not have, such as the slower H100 PCIe.
std::optional<Gpu> GpuOfDevice(absl::string_view description);

// The dense rate, in FLOP/s, that products of this type could reach.
double PeakOf(const Gpu& gpu, DType dtype, bool float8);

// Shares of the peak, 0 to 1.
struct Utilization {
  double full_attention = 0;    // PaLM
  double causal_attention = 0;  // Megatron-LM
};
Utilization UtilizationOf(const TokenFlops& flops, double tokens_per_second_a_gpu, double peak);

}  // namespace convene::worker
