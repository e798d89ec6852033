// Captures and graphs: a graph is the list of operations that were queued while its stream
// captured.
#include <memory>
#include <utility>

#include "worker_runtime/device/emulated/state.h"

// Something that a graph keeps alive.
struct CUuserObject_st {
  std::shared_ptr<void> payload;
};

namespace convene::emulated {

cudaStream_t& Capturing() {
  thread_local cudaStream_t stream = nullptr;
  return stream;
}

bool SpoilsCapture() {
  if (Capturing() == nullptr) return false;
  Capturing()->capture_is_invalid = true;
  return true;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  const MutexLock lock(&TheState().mutex);
  if (stream == nullptr || stream->capture != nullptr) return Say(cudaErrorInvalidValue);
  stream->capture = std::make_unique<CUgraph_st>();
  stream->capture_is_invalid = false;
  Capturing() = stream;
  return Health();
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const MutexLock lock(&TheState().mutex);
  *graph = nullptr;
  if (stream->capture == nullptr) return Say(cudaErrorInvalidValue);
  const std::unique_ptr<CUgraph_st> captured = std::move(stream->capture);
  Capturing() = nullptr;
  if (stream->capture_is_invalid) return Say(cudaErrorStreamCaptureInvalidated);
  *graph = new CUgraph_st{std::move(captured->work)};
  return Health();
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const MutexLock lock(&TheState().mutex);
  *status = stream->capture == nullptr   ? cudaStreamCaptureStatusNone
            : stream->capture_is_invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
  return Health();
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* /*id*/,  // NOLINT(google-runtime-int)
                                     cudaGraph_t* graph, const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/,
                                     size_t* /*dependency_count*/) {
  const cudaError_t error = cudaStreamIsCapturing(stream, status);
  const MutexLock lock(&TheState().mutex);
  if (graph != nullptr) *graph = stream->capture.get();
  return error;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* payload, void (*destroy)(void*),
                                 unsigned int references, unsigned int /*flags*/) {
  if (references != 1) return Say(cudaErrorInvalidValue);  // all that anybody asks for
  *object = new CUuserObject_st{std::shared_ptr<void>(payload, destroy)};
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int /*references*/) {
  delete object;  // graphs that keep the payload have it still
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                      unsigned int /*references*/, unsigned int /*flags*/) {
  const MutexLock lock(&TheState().mutex);
  graph->work.emplace_back([kept = object->payload] {});
  return cudaSuccess;
}

// A capture forbids here what it forbids in its own thread, whatever the mode.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeThreadLocal;
  std::swap(current, *mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {  // NOLINT(google-runtime-int)
  const MutexLock lock(&TheState().mutex);
  *executable =
      new CUgraphExec_st{std::make_shared<const std::vector<std::function<void()>>>(graph->work)};
  return Health();
}

cudaError_t cudaGraphUpload(cudaGraphExec_t /*executable*/, cudaStream_t /*stream*/) {
  const MutexLock lock(&TheState().mutex);
  return Health();
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  return Enqueue(stream, {.work = [work = executable->work] {
                   for (const std::function<void()>& each : *work) {
                     if (TheState().failure.empty()) each();
                   }
                 }});
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;  // a launch that is queued keeps its list
  return cudaSuccess;
}

}  // extern "C"
}  // namespace convene::emulated
