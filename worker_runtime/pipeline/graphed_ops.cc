#include "worker_runtime/pipeline/graphed_ops.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "spdlog/spdlog.h"

namespace convene::worker {

absl::Status GraphedOps::Run(const Name& name, Stream& stream,
                             absl::FunctionRef<absl::Status()> queue_ops) {
  if (has_failed_) return queue_ops();
  Captured& captured = captured_[name];
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
