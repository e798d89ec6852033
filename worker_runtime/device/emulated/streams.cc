// Streams and events. Work runs when a caller must wait for it and not before (Order::kForward), as
// soon as it is queued (kReverse), or at random moments (kRandom), always on the calling thread.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "worker_runtime/device/emulated/runtime.h"
#include "worker_runtime/device/emulated/state.h"

namespace convene::emulated {
namespace {

// Starts the host function once; returns whether it is done.
bool IsDone(Operation& operation) {
  if (operation.host_call == nullptr) {
    operation.host_call = std::make_unique<HostCall>();
    operation.host_call->thread =
        Thread("gpu-host-call", [call = operation.host_call.get(), work = operation.work] {
          work();
          const MutexLock lock(&TheState().mutex);
          call->is_done = true;
          TheState().changed.SignalAll();
        });
  }
  return operation.host_call->is_done;
}

// Returns false where the operation has to wait.
bool Run(Operation& operation, Actor& actor) {
  switch (operation.kind) {
    case Operation::Kind::kWork:
      if (!TheState().failure.empty()) return true;
      actor.Do([&] {
        Observe(&operation.clock);
        operation.work();
      });
      return true;
    case Operation::Kind::kHostFunction:
      if (!IsDone(operation)) return false;
      operation.host_call->thread.Join();
      return true;
    case Operation::Kind::kRecord:
      operation.record->is_done = true;
      operation.record->time = std::chrono::steady_clock::now();
      actor.Do([&] { Publish(&operation.record->clock); });
      return true;
    case Operation::Kind::kWait:
      if (!RunUntil(operation.record->stream, operation.record->is_done)) return false;
      actor.Do([&] { Observe(&operation.record->clock); });
      return true;
    case Operation::Kind::kMeeting: {
      bool is_over = !TheState().failure.empty();
      if (is_over) return true;
      actor.Do([&] {
        Observe(&operation.clock);
        is_over = operation.meet();
      });
      return is_over;
    }
  }
  return true;
}

// Runs the stream's first operation; false where it has to wait, or waits already for this call.
bool RunFirst(CUstream_st& stream) {
  if (stream.is_running) return false;
  stream.is_running = true;
  const bool is_done = Run(stream.operations.front(), stream.actor);
  stream.is_running = false;
  if (is_done) stream.operations.pop_front();
  return is_done;
}

// In kRandom runs one operation of some stream.
void RunSomeOther() {
  State& state = TheState();
  if (state.order != Order::kRandom) return;
  CUstream_st& stream = *state.streams[state.turn++ % state.streams.size()];
  if (!stream.operations.empty()) (void)RunFirst(stream);
}

int DevicesFromEnvironment() {
  const char* const value = std::getenv("CONVENE_EMULATED_GPUS");
  return value == nullptr ? 1 : std::max(1, std::atoi(value));
}

}  // namespace

State::State() : device_bytes(DevicesFromEnvironment()), pool_bytes(device_bytes.size()) {
  for (size_t device = 0; device < device_bytes.size(); ++device) {
    streams.push_back(std::make_unique<CUstream_st>());
    streams.back()->device = static_cast<int>(device);
  }
}

State& TheState() {
  static auto* const state = new State;
  return *state;
}

int& CurrentDevice() {
  thread_local int device = 0;
  return device;
}

cudaError_t& LastError() {
  thread_local cudaError_t error = cudaSuccess;
  return error;
}
cudaError_t Say(cudaError_t error) {
  if (error != cudaSuccess) LastError() = error;
  return error;
}
cudaError_t Health() {
  return Say(TheState().failure.empty() ? cudaSuccess : cudaErrorLaunchFailure);
}

void Fail(std::string why) {
  TheState().failure = std::move(why);
  std::fprintf(stderr, "emulated GPU: %s\n", TheState().failure.c_str());
  TheState().changed.SignalAll();
}

cudaStream_t Resolve(cudaStream_t stream) {
  return stream == nullptr ? TheState().streams[CurrentDevice()].get() : stream;
}

cudaError_t Enqueue(cudaStream_t stream, Operation operation) {
  stream = Resolve(stream);
  if (stream->capture != nullptr) {
    if (operation.kind != Operation::Kind::kWork) {
      stream->capture_is_invalid = true;
      return Say(cudaErrorStreamCaptureUnsupported);
    }
    stream->capture->work.push_back(std::move(operation.work));
    return cudaSuccess;
  }
  stream->operations.push_back(std::move(operation));
  Publish(&stream->operations.back().clock);
  RunSomeOther();
  if (TheState().order == Order::kReverse) (void)RunAll(stream);
  return Health();
}

bool RunAll(cudaStream_t stream) {
  while (!stream->operations.empty()) {
    RunSomeOther();
    if (!stream->operations.empty() && !RunFirst(*stream)) return false;
  }
  return true;
}

bool RunUntil(cudaStream_t stream, const bool& is_reached) {
  while (!is_reached) {
    RunSomeOther();
    if (!is_reached && !RunFirst(*stream)) break;
  }
  return is_reached;
}

void Finish(cudaStream_t stream) {
  while (!RunAll(stream)) TheState().changed.Wait(&TheState().mutex);
  char clock = 0;
  stream->actor.Do([&] { Publish(&clock); });
  Observe(&clock);
}

void FinishAll() {
  for (size_t i = 0; i < TheState().streams.size(); ++i) {
    const cudaStream_t stream = TheState().streams[i].get();
    if (stream->device == CurrentDevice()) Finish(stream);
  }
  TheState().pool_bytes[CurrentDevice()] = 0;
}

cudaError_t QueueWork(cudaStream_t stream, std::function<void()> work) {
  const MutexLock lock(&TheState().mutex);
  if (Resolve(stream)->device != CurrentDevice()) return Say(cudaErrorInvalidResourceHandle);
  return Enqueue(stream, {.work = std::move(work)});
}

bool QueueLibraryWork(cudaStream_t stream, std::function<void()> work) {
  return QueueWork(stream, std::move(work)) == cudaSuccess;
}

void ForgetFailure() {
  const MutexLock lock(&TheState().mutex);
  TheState().failure.clear();
  LastError() = cudaSuccess;
}

void SetOrder(Order order) {
  const MutexLock lock(&TheState().mutex);
  TheState().order = order;
}

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(LastError(), Health()); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int /*flags*/,
                                         int /*priority*/) {
  const MutexLock lock(&TheState().mutex);
  std::erase_if(TheState().streams,
                [](const auto& each) { return each->is_destroyed && each->operations.empty(); });
  TheState().streams.push_back(std::make_unique<CUstream_st>());
  *stream = TheState().streams.back().get();
  (*stream)->device = CurrentDevice();
  return Health();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  while (!RunAll(stream)) {
    // "The resources associated with stream will be released automatically once the device has
    // completed all work in stream" (CUDA Runtime API, cudaStreamDestroy).
    stream->is_destroyed = stream->operations.front().kind != Operation::Kind::kHostFunction;
    if (stream->is_destroyed) return Health();
    TheState().changed.Wait(&TheState().mutex);
  }
  Finish(stream);
  std::erase_if(TheState().streams, [stream](const auto& each) { return each.get() == stream; });
  return Health();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  if (SpoilsCapture()) return Say(cudaErrorStreamCaptureUnsupported);
  Finish(Resolve(stream));
  TheState().pool_bytes[Resolve(stream)->device] = 0;
  return Health();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  const MutexLock lock(&TheState().mutex);
  if (event->last == nullptr) return Health();  // never recorded: nothing to wait for
  return Enqueue(stream, {.kind = Operation::Kind::kWait, .record = event->last});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*work)(void*), void* argument) {
  const MutexLock lock(&TheState().mutex);
  return Enqueue(stream, {.kind = Operation::Kind::kHostFunction, .work = [=] { work(argument); }});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const MutexLock lock(&TheState().mutex);
  *event = new CUevent_st{.device = CurrentDevice(),
                          .has_time = (flags & cudaEventDisableTiming) == 0,
                          .last = nullptr};
  return Health();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const MutexLock lock(&TheState().mutex);
  delete event;  // a record that somebody waits for lives on
  return Health();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const MutexLock lock(&TheState().mutex);
  if (Resolve(stream)->device != event->device) return Say(cudaErrorInvalidResourceHandle);
  auto record = std::make_shared<Record>();
  record->stream = Resolve(stream);
  const cudaError_t error = Enqueue(stream, {.kind = Operation::Kind::kRecord, .record = record});
  if (error == cudaSuccess) event->last = std::move(record);
  return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const MutexLock lock(&TheState().mutex);
  if (SpoilsCapture()) return Say(cudaErrorStreamCaptureUnsupported);
  if (event->last == nullptr) return Health();
  if (!RunUntil(event->last->stream, event->last->is_done)) return Say(cudaErrorNotReady);
  Observe(&event->last->clock);
  return Health();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const MutexLock lock(&TheState().mutex);
  for (const cudaEvent_t event : {begin, end}) {
    if (!event->has_time || event->last == nullptr) return Say(cudaErrorInvalidResourceHandle);
    if (!event->last->is_done) return Say(cudaErrorNotReady);
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->last->time - begin->last->time).count();
  return Health();
}

}  // extern "C"
}  // namespace convene::emulated
