// PURE. Chooses the processor that a rank trains on, and how it trains.
#pragma once

#include <optional>
#include <string>

#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

// The number of the GPU among the `gpus` that CUDA shows this process, or nullopt for the CPU.
// `auto` takes a GPU where there is one. Several ranks of a node see the same GPUs and take the one
// of their local rank; where each was given one of its own (CUDA_VISIBLE_DEVICES), that one. Ranks
// beyond the GPUs share them, in turn. `cuda` takes one also where there is none: opening it
// (Device::Cuda) fails, and says why.
std::optional<int> ChooseDevice(DeviceChoice choice, int gpus, int local_rank);

// The line for the log when the ranks train on their CPUs because `auto` found no GPU; "" where a
// person expects that: in a program without CUDA, on a machine without NVIDIA's devices. `cuda`:
// Device::Cuda's error.
std::string WhyNoGpu(DeviceChoice choice, const absl::Status& cuda, bool program_has_cuda,
                     bool machine_has_gpus);

// The meaning of `precision: auto` on this device.
DType ChoosePrecision(std::optional<DType> precision, bool is_gpu);

// Whether passes are captured as CUDA graphs. They change no bit, so an obstacle to them is no
// error: the same configuration then trains op by op.
struct GraphChoice {
  bool use_graphs = false;
  std::string text;  // the line for the log; "" when graphs were not asked for
};
GraphChoice ChooseGraphs(const TrainOptions& options, const Layout& layout, bool is_gpu);

// The warning for a layout whose attention is slow on this device; "" for any other. On GPUs in
// bf16 ring and all-gather meet keys in parts of rows, which cuDNN does not take.
std::string WhySlowAttention(const TrainOptions& options, const Layout& layout, bool is_gpu);

// Whether devices of this kind can run the schedule: between GPUs a rank exchanges messages with
// kNcclLinksMax others at most (comm/nccl/limits.h). InvalidArgument names the rank.
absl::Status CheckSchedule(const TrainOptions& options, const Layout& layout, bool is_gpu);

}  // namespace convene::worker
