// PURE. Chooses the processor that a rank trains on, and how it trains.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

// The number of the GPU among the `gpus` that CUDA shows this process, or nullopt for the CPU.
// `auto` takes a GPU where there is one. Several ranks of a node see the same GPUs and take the one
// of their local rank; where each was given one of its own (CUDA_VISIBLE_DEVICES), that one. Ranks
// beyond the GPUs share them, in turn. FailedPrecondition when cuda was asked for and there is no
// GPU.
absl::StatusOr<std::optional<int>> ChooseDevice(DeviceChoice choice, int gpus, int local_rank);

// The meaning of `precision: auto` on this device.
DType ChoosePrecision(std::optional<DType> precision, bool is_gpu);

// Whether passes are captured as CUDA graphs. They change no bit, so an obstacle to them is no
// error: the same configuration then trains op by op.
struct GraphChoice {
  bool use_graphs = false;
  std::string text;  // the line for the log; "" when graphs were not asked for
};
GraphChoice ChooseGraphs(const TrainOptions& options, const Layout& layout, bool is_gpu);

// Whether a device of this kind can run the schedule: behind NCCL's two lanes messages of schedules
// with several chunks a rank may stand still (comm/nccl/lanes_test.cc). InvalidArgument names the
// others.
absl::Status CheckSchedule(const TrainOptions& options, const Layout& layout, bool is_gpu);

}  // namespace convene::worker
