// Streams and events. Work runs when somebody must wait for it and not before (Order::kForward), as
// soon as it is queued (kReverse), or now and then (kRandom), always on the thread that calls.
#include <algorithm>
#include <utility>

#include "tools/base/check.h"
#include "worker_runtime/device/emulated/runtime.h"
#include "worker_runtime/device/emulated/state.h"

namespace convene::emulated {
namespace {

bool IsReady(const std::future<void>& call) {
  return call.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

// Runs the stream's first operation; false where it has to wait.
bool RunFirst(CUstream_st& stream) {
  Operation& first = stream.operations.front();
  switch (first.kind) {
    case Operation::Kind::kWork:
      if (!TheState().failure.empty()) break;
      stream.actor.Do([&] {
        Observe(&first.clock);
        first.work();
      });
      break;
    case Operation::Kind::kHostFunction:
      if (!first.host_function.valid()) {
        first.host_function = std::async(std::launch::async, first.work);
      }
      if (!IsReady(first.host_function)) return false;
      break;
    case Operation::Kind::kRecord:
      first.record->is_done = true;
      first.record->time = std::chrono::steady_clock::now();
      stream.actor.Do([&] { Publish(&first.record->clock); });
      break;
    case Operation::Kind::kWait:
      if (!RunUpTo(*first.record)) return false;
      stream.actor.Do([&] { Observe(&first.record->clock); });
      break;
  }
  stream.operations.pop_front();
  return true;
}

// In kRandom a few operations of any stream.
void RunSomeOther() {
  State& state = TheState();
  if (state.order != Order::kRandom) return;
  CUstream_st& stream = *state.streams[state.turn++ % state.streams.size()];
  if (!stream.operations.empty()) (void)RunFirst(stream);
}

}  // namespace

State& TheState() {
  static auto* const state = [] {
    auto* made = new State;
    made->streams.push_back(std::make_unique<CUstream_st>());  // the default stream
    return made;
  }();
  return *state;
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

cudaStream_t Resolve(cudaStream_t stream) {
  return stream == nullptr ? TheState().streams.front().get() : stream;
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

bool RunUpTo(const Record& record) {
  while (!record.is_done) {
    RunSomeOther();
    if (!record.is_done && !RunFirst(*record.stream)) return false;
  }
  return true;
}

void Finish(cudaStream_t stream, std::unique_lock<std::mutex>& lock) {
  while (!RunAll(stream)) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
  }
  char clock = 0;
  stream->actor.Do([&] { Publish(&clock); });
  Observe(&clock);
}

void FinishAll(std::unique_lock<std::mutex>& lock) {
  for (size_t i = 0; i < TheState().streams.size(); ++i) {
    Finish(TheState().streams[i].get(), lock);
  }
}

cudaError_t QueueWork(cudaStream_t stream, std::function<void()> work) {
  const std::unique_lock lock(TheState().mutex);
  Operation operation;
  operation.work = std::move(work);
  return Enqueue(stream, std::move(operation));
}

void ForgetFailure() {
  const std::unique_lock lock(TheState().mutex);
  TheState().failure.clear();
  LastError() = cudaSuccess;
}

void SetOrder(Order order) {
  const std::unique_lock lock(TheState().mutex);
  TheState().order = order;
}

}  // namespace convene::emulated

using convene::emulated::Enqueue;
using convene::emulated::Finish;
using convene::emulated::Health;
using convene::emulated::LastError;
using convene::emulated::Observe;
using convene::emulated::Operation;
using convene::emulated::Record;
using convene::emulated::Resolve;
using convene::emulated::Say;
using convene::emulated::SpoilsCapture;
using convene::emulated::TheState;

cudaError_t cudaGetLastError() { return std::exchange(LastError(), Health()); }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int /*flags*/,
                                         int /*priority*/) {
  const std::unique_lock lock(TheState().mutex);
  TheState().streams.push_back(std::make_unique<CUstream_st>());
  *stream = TheState().streams.back().get();
  return Health();
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  Finish(stream, lock);
  std::erase_if(TheState().streams, [stream](const auto& each) { return each.get() == stream; });
  return Health();
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::unique_lock lock(TheState().mutex);
  if (SpoilsCapture()) return Say(cudaErrorStreamCaptureUnsupported);
  Finish(Resolve(stream), lock);
  return Health();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  const std::unique_lock lock(TheState().mutex);
  if (event->last == nullptr) return Health();  // never recorded: nothing to wait for
  Operation operation;
  operation.kind = Operation::Kind::kWait;
  operation.record = event->last;
  return Enqueue(stream, std::move(operation));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*work)(void*), void* argument) {
  const std::unique_lock lock(TheState().mutex);
  Operation operation;
  operation.kind = Operation::Kind::kHostFunction;
  operation.work = [work, argument] { work(argument); };
  return Enqueue(stream, std::move(operation));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  const std::unique_lock lock(TheState().mutex);
  *event = new CUevent_st{.has_time = (flags & cudaEventDisableTiming) == 0, .last = nullptr};
  return Health();
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::unique_lock lock(TheState().mutex);
  delete event;  // a record that somebody waits for lives on
  return Health();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::unique_lock lock(TheState().mutex);
  auto record = std::make_shared<Record>();
  record->stream = Resolve(stream);
  Operation operation;
  operation.kind = Operation::Kind::kRecord;
  operation.record = record;
  const cudaError_t error = Enqueue(stream, std::move(operation));
  if (error == cudaSuccess) event->last = std::move(record);
  return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::unique_lock lock(TheState().mutex);
  if (SpoilsCapture()) return Say(cudaErrorStreamCaptureUnsupported);
  if (event->last == nullptr) return Health();
  if (!RunUpTo(*event->last)) return Say(cudaErrorNotReady);
  Observe(&event->last->clock);
  return Health();
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::unique_lock lock(TheState().mutex);
  for (const cudaEvent_t event : {begin, end}) {
    if (!event->has_time || event->last == nullptr) return Say(cudaErrorInvalidResourceHandle);
    if (!event->last->is_done) return Say(cudaErrorNotReady);
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->last->time - begin->last->time).count();
  return Health();
}
