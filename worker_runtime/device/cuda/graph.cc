#include "worker_runtime/device/cuda/graph.h"

#include <type_traits>

#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/first_error.h"

namespace convene::worker::cuda {
namespace {

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};
using OwnedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;

}  // namespace

absl::StatusOr<std::unique_ptr<Graph>> CudaGraph::Capture(Queue& queue,
                                                          absl::FunctionRef<absl::Status()> work) {
  absl::StatusOr<std::unique_ptr<Graph>> graph = TryCapture(queue, work);
  if (!graph.ok()) (void)cudaGetLastError();  // it is told here, not at the next launch
  return graph;
}

absl::StatusOr<std::unique_ptr<Graph>> CudaGraph::TryCapture(
    Queue& queue, absl::FunctionRef<absl::Status()> work) {
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture"));
  FirstError reported;
  queue.ReportAside(&reported);
  const absl::Status worked = work();
  queue.ReportAside(nullptr);
  // The capture is ended in any case: a failed one holds the stream until then.
  cudaGraph_t captured = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(queue.stream(), &captured);
  const OwnedGraph graph(captured);
  // The op's own error comes first: it names the op, while the end of the capture says only that it
  // was invalid.
  CONVENE_RETURN_IF_ERROR(reported.status());
  CONVENE_RETURN_IF_ERROR(worked);
  CONVENE_RETURN_IF_ERROR(CudaStatus(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t executable = nullptr;
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaGraphInstantiate(&executable, graph.get(), 0), "cudaGraphInstantiate"));
  std::unique_ptr<Graph> made(new CudaGraph(executable, queue));
  // The graph is uploaded now, so that the first launch does not pay for it.
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaGraphUpload(executable, queue.stream()), "cudaGraphUpload"));
  return made;
}

CudaGraph::~CudaGraph() {
  queue_.Report(cudaGraphExecDestroy(executable_), "cudaGraphExecDestroy");
}

void CudaGraph::Launch(Queue& queue) {
  queue.Report(cudaGraphLaunch(executable_, queue.stream()), "cudaGraphLaunch");
}

}  // namespace convene::worker::cuda
