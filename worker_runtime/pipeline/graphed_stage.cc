#include "worker_runtime/pipeline/graphed_stage.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "spdlog/spdlog.h"

namespace convene::worker {

GraphedStage::GraphedStage(PipelineStage& stage, Device& device, const GraphedPasses& passes)
    : stage_(stage), device_(device), passes_(passes) {}

absl::Status GraphedStage::Run(const StagePass& pass, Stream& stream) {
  const auto queue_ops = [&] { return stage_.Run(pass, stream); };
  if (has_failed_ || !passes_.Contains(pass)) return queue_ops();
  Captured& captured = captured_[{pass.compute.kind, pass.compute.chunk, pass.compute.microbatch}];
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
