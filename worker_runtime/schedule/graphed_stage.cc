#include "worker_runtime/schedule/graphed_stage.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "spdlog/spdlog.h"

namespace convene::worker {

GraphedStage::GraphedStage(PipelineStage& stage, Device& device, const GraphedPasses& passes)
    : stage_(stage),
      device_(device),
      passes_(passes),
      captured_(2 * std::min(passes.microbatches, GraphedPasses::kMicrobatchesMax)) {}

absl::Status GraphedStage::Forward(int microbatch, Stream& stream) {
  return Run(StagePass::kForward, microbatch, stream,
             [&] { return stage_.Forward(microbatch, stream); });
}

absl::Status GraphedStage::Backward(int microbatch, Stream& stream) {
  return Run(StagePass::kBackward, microbatch, stream,
             [&] { return stage_.Backward(microbatch, stream); });
}

absl::Status GraphedStage::Run(StagePass pass, int microbatch, Stream& stream,
                               absl::FunctionRef<absl::Status()> queue_ops) {
  if (has_failed_ || !passes_.Contains(pass, microbatch)) return queue_ops();
  Captured& captured = captured_[2 * microbatch + (pass == StagePass::kForward ? 0 : 1)];
  if (!std::exchange(captured.has_run, true)) return queue_ops();
  if (captured.graph == nullptr) {
    absl::StatusOr<std::unique_ptr<Graph>> graph = device_.Capture(stream, queue_ops);
    if (!graph.ok()) {
      has_failed_ = true;
      captured_.clear();
      spdlog::warn("CUDA graphs are off from here on, because a pass could not be captured: {}",
                   std::string(graph.status().message()));
      return queue_ops();
    }
    captured.graph = *std::move(graph);
  }
  device_.Launch(*captured.graph, stream);
  return absl::OkStatus();
}

}  // namespace convene::worker
