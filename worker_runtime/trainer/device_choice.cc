#include "worker_runtime/trainer/device_choice.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/nccl/limits.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/pipeline/graphed_passes.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

std::optional<int> ChooseDevice(DeviceChoice choice, int gpus, int local_rank) {
  if (choice == DeviceChoice::kCpu) return std::nullopt;
  if (gpus > 0) return local_rank % gpus;
  if (choice == DeviceChoice::kAuto) return std::nullopt;
  return local_rank;
}

std::string WhyNoGpu(DeviceChoice choice, const absl::Status& cuda, bool program_has_cuda,
                     bool machine_has_gpus) {
  if (choice != DeviceChoice::kAuto || (!program_has_cuda && !machine_has_gpus)) return "";
  return absl::StrCat(cuda.message(), " (--device cuda makes this an error)");
}

DType ChoosePrecision(std::optional<DType> precision, bool is_gpu) {
  return precision.value_or(is_gpu ? DType::kBFloat16 : DType::kFloat32);
}

GraphChoice ChooseGraphs(const TrainOptions& options, const Layout& layout, bool is_gpu) {
  if (!options.cuda_graphs) return {};
  const int64_t microbatches = MicrobatchCount(CutOf(options, layout));
  if (!is_gpu) return {false, "off: on a CPU ops run when they are called"};
  for (const auto& [is_given, flag] :
       {std::pair(options.profile, "--profile"), std::pair(options.comm_log, "--comm-log"),
        std::pair(options.trace.has_value(), "--trace")}) {
    if (is_given) return {false, absl::StrCat("off: ", flag, " times single ops")};
  }
  if (options.packed_documents) {
    return {false, "off: with packed documents attention's work changes from step to step"};
  }
  if (layout.tp > 1 || layout.cp > 1) {
    return {false, absl::StrCat("off: with tp_size ", layout.tp, " and cp_size ", layout.cp,
                                " every block has collectives, which are watched one by one")};
  }
  if (options.model.experts.count > 0) {
    return {false, "off: the host plans the way of each layer's tokens to their experts"};
  }
  if (options.reproducible) {
    return {false, "off: with reproducible a gradient's place changes from pass to pass"};
  }
  if (options.zero_stage > 1) {
    return {false, absl::StrCat("off: with zero_stage ", options.zero_stage,
                                " every pass has collectives; with zero_stage 1 only the first and "
                                "the last of a step")};
  }
  if (microbatches > GraphedPasses::kMicrobatchesMax) {
    return {true, absl::StrCat("on, for the first ", GraphedPasses::kMicrobatchesMax, " of ",
                               microbatches, " micro batches a step")};
  }
  return {true, "on, captured in the second step"};
}

std::string WhySlowAttention(const TrainOptions& options, const Layout& layout, bool is_gpu) {
  constexpr const char* kOwnKernels =
      ": attention runs our own kernels, which use no tensor cores (an estimate, never measured: "
      "12 TFLOP/s forward on an H100, where cuDNN's take hundreds). ";
  if (!is_gpu || ChoosePrecision(options.precision, is_gpu) != DType::kBFloat16) return "";
  const int window = options.model.sliding_window;
  if (window > 0 && window < options.sequence_length) {
    return absl::StrCat("sliding_window ", window, " below sequence_length ",
                        options.sequence_length, kOwnKernels, "A sequence_length up to ", window,
                        " has no use for the window, and runs cuDNN's");
  }
  if (options.model.score_cap > 0) {
    return absl::StrCat("scores with a cap, which ", options.model_name, " has", kOwnKernels,
                        "Models without a cap run cuDNN's");
  }
  const ContextMethod method = ContextMethodOf(options, layout);
  const bool is_cudnns = method == ContextMethod::kUlysses ||
                         (method == ContextMethod::kRing && !options.packed_documents);
  if (layout.cp == 1 || is_cudnns) return "";
  return absl::StrCat(
      "cp_size ", layout.cp, " by ", ContextMethodName(method),
      options.packed_documents ? " with packed documents" : "", kOwnKernels,
      "cp_method ulysses runs cuDNN's, where cp_size divides the heads and the "
      "key-value heads of a tensor-parallel rank; so does cp_method ring without packed documents");
}

absl::Status CheckSchedule(const TrainOptions& options, const Layout& layout, bool is_gpu) {
  CONVENE_ASSIGN_OR_RETURN(const PipelineChoice pipeline, PipelineOf(options, layout));
  if (!is_gpu) return absl::OkStatus();
  std::vector<int> links(layout.pp);
  for (const auto& [low, high] : LinksOf(pipeline.schedule.placement)) {
    ++links[low];
    ++links[high];
  }
  for (int rank = 0; rank < layout.pp; ++rank) {
    if (links[rank] <= kNcclLinksMax) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "pp_schedule ", options.pp_schedule, " has rank ", rank, " exchange messages with ",
        links[rank], " others, and on GPUs ", kNcclLinksMax,
        " is the most; place the chunks so, choose a schedule by name, or use --device cpu"));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
