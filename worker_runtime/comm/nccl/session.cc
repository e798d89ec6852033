#include "worker_runtime/comm/nccl/session.h"

#include <sched.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/queue.h"

// Missing in a library that is older than 2.27; convene-train starts all the same.
extern "C" {
[[gnu::weak]] ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int);
[[gnu::weak]] ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t);
}

namespace convene::worker {
namespace {

using cuda::CudaStatus;

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr absl::Duration kExplanationPatience = absl::Seconds(10);
constexpr absl::Duration kFarewellPatience = absl::Seconds(10);
// Queueing takes microseconds, so a sleeping thread would lose more than it saves; a first
// connection takes seconds.
constexpr int kSpins = 2000;
constexpr absl::Duration kPollInterval = absl::Microseconds(50);

void Pause(int turn) {
  if (turn < kSpins) {
    sched_yield();
  } else {
    Clock::Real().SleepFor(kPollInterval);
  }
}

}  // namespace

absl::Status NcclStatus(ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  const char* const last = ncclGetLastError(nullptr);
  const std::string text =
      absl::StrCat("NCCL: ", ncclGetErrorString(result),
                   last != nullptr && last[0] != '\0' ? absl::StrCat(" (", last, ")") : "");
  switch (result) {
    case ncclRemoteError:
    case ncclSystemError:
      return absl::UnavailableError(text);
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InvalidArgumentError(text);
    default:
      return absl::InternalError(text);
  }
}

NcclSession::NcclSession(NcclSessionOptions options) : options_(std::move(options)) {
  CONVENE_CHECK(options_.recorder != nullptr);
}

NcclSession::~NcclSession() {
  {
    MutexLock lock(&status_mutex_);
    stopping_ = true;
    status_changed_.SignalAll();
  }
  if (watchdog_.joinable()) watchdog_.Join();
  cudaSetDevice(options_.cuda_device);
  MutexLock lock(&nccl_mutex_);
  FinalizeAll();
  for (const Order& order : orders_) {
    for (const Open& open : order.open) free_events_.push_back(open.event);
  }
  for (const cudaEvent_t event : free_events_) cudaEventDestroy(event);
}

absl::Status NcclSession::AwaitQueued(ncclComm_t communicator, MonotonicTime deadline) {
  for (int turn = 0;; ++turn) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator, &state);
    if (asked != ncclSuccess) return NcclStatus(asked);
    if (state != ncclInProgress) return NcclStatus(state);
    if (failing_) return absl::AbortedError("the session ends");
    if (Clock::Real().Now() >= deadline) {
      return absl::DeadlineExceededError("the other ranks did not do their part in time");
    }
    Pause(turn);
  }
}

absl::StatusOr<int> NcclSession::MakeCommunicator(const std::string& name, int size, int rank,
                                                  const ncclUniqueId& id, MonotonicTime deadline,
                                                  const NcclCommunicatorTraits& traits) {
  MutexLock lock(&nccl_mutex_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (traits.blocks_max > 0) config.maxCTAs = traits.blocks_max;
  // From here on the session's end aborts this communicator too, even half made.
  queueing_ = static_cast<int>(communicators_.size());
  communicators_.push_back(
      {.name = name, .handle = std::make_unique<ncclComm_t>(nullptr), .traits = traits});
  ncclComm_t* const made = communicators_.back().handle.get();
  absl::Status status = NcclStatus(ncclCommInitRankConfig(made, size, id, rank, &config));
  if (status.ok()) status = AwaitQueued(*made, deadline);
  if (!status.ok()) return Annotate(status, absl::StrCat(name, " communicator"));
  return std::exchange(queueing_, -1);
}

int NcclSession::MakeOrder(std::string name, std::vector<int> members) {
  MutexLock lock(&nccl_mutex_);
  Order& order = orders_.emplace_back();
  order.members = std::move(members);
  order.progress.order = std::move(name);
  return static_cast<int>(orders_.size()) - 1;
}

absl::StatusOr<cudaEvent_t> NcclSession::TakeEvent() {
  if (!free_events_.empty()) {
    const cudaEvent_t event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  cudaEvent_t event = nullptr;
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event"));
  return event;
}

absl::Status NcclSession::Queue(const Operation& operation,
                                absl::FunctionRef<ncclResult_t(ncclComm_t)> queue,
                                MonotonicTime deadline, cudaEvent_t& event, bool& captured) {
  const ncclComm_t handle = *communicators_[operation.communicator].handle;
  queueing_ = operation.communicator;
  CONVENE_RETURN_IF_ERROR(NcclStatus(queue(handle)));
  CONVENE_RETURN_IF_ERROR(AwaitQueued(handle, deadline));
  queueing_ = -1;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  CONVENE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamIsCapturing(operation.stream, &capture), "its stream"));
  captured = capture == cudaStreamCaptureStatusActive;
  if (captured) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(event, TakeEvent());
  return absl::OkStatus();
}

absl::Status NcclSession::Start(const Operation& operation,
                                absl::FunctionRef<ncclResult_t(ncclComm_t)> queue) {
  Failure failure;
  cudaEvent_t event = nullptr;
  {
    MutexLock lock(&nccl_mutex_);
    if (!failing_) {  // else the handles are gone
      Order& order = orders_[operation.order];
      NcclProgress& progress = order.progress;
      ++progress.started;
      progress.operation.assign(operation.counted_as.data(), operation.counted_as.size());
      progress.size_bytes = operation.data.size_bytes();
      progress.dtype = DTypeName(operation.data.dtype);
      Open& open = order.open.emplace_back();
      open.sequence = progress.started;
      open.record = options_.recorder->Start(operation.group, operation.operation, progress.started,
                                             operation.data);
      open.queued = open.since = Clock::Real().Now();
      open.communicator = operation.communicator;
      open.group.assign(operation.group.data(), operation.group.size());
      open.text.assign(operation.operation.data(), operation.operation.size());
      open.as_started = progress;

      bool captured = false;
      const absl::Status status =
          Queue(operation, queue, open.since + options_.operation_timeout, event, captured);
      if (event == nullptr) {
        options_.recorder->Finish(open.record, status);
        // A captured operation has no end to watch: the code that runs the graph waits for it, with
        // its own deadline.
        if (status.ok()) progress.completed = progress.started;
        if (!status.ok()) failure = FailureOf(order, open, status);
        order.open.pop_back();
        if (status.ok()) return absl::OkStatus();
      }
    }
  }
  if (event != nullptr) {
    const absl::Status recorded = CudaStatus(cudaEventRecord(event, operation.stream), "its event");
    MutexLock lock(&nccl_mutex_);
    Order& order = orders_[operation.order];
    // The operation is still the last one: an order has one thread at a time, and an operation
    // without an event stays open.
    Open& open = order.open.back();
    open.event = event;
    if (recorded.ok()) return absl::OkStatus();
    failure = FailureOf(order, open, recorded);
  }
  End(failure);
  return status();
}

absl::StatusOr<bool> NcclSession::IsComplete(const Open& open) {
  if (open.event == nullptr) return false;
  const cudaError_t state = cudaEventQuery(open.event);
  if (state == cudaErrorNotReady) {
    cudaGetLastError();  // no error of this thread's next launch
    return false;
  }
  CONVENE_RETURN_IF_ERROR(CudaStatus(state, "an operation queued before"));
  return true;
}

absl::Status NcclSession::Collect(Order& order, MonotonicTime now) {
  while (!order.open.empty()) {
    const Open& open = order.open.front();
    CONVENE_ASSIGN_OR_RETURN(const bool complete, IsComplete(open));
    if (!complete) return absl::OkStatus();
    options_.recorder->Finish(open.record, absl::OkStatus());
    order.progress.completed = open.sequence;
    free_events_.push_back(open.event);
    order.open.pop_front();
    if (!order.open.empty()) order.open.front().since = now;
  }
  return absl::OkStatus();
}

absl::Status NcclSession::Await(int order, MonotonicTime deadline) {
  for (int turn = 0;; ++turn) {
    if (failing_) return status();
    Failure failure;
    {
      MutexLock lock(&nccl_mutex_);
      if (failing_) continue;
      Order& awaited = orders_[order];
      const MonotonicTime now = Clock::Real().Now();
      const absl::Status collected = Collect(awaited, now);
      if (collected.ok() && awaited.open.empty()) return absl::OkStatus();
      if (!collected.ok()) {
        failure = FailureAt(awaited, collected);
      } else if (now >= deadline) {
        failure = FailureAt(awaited, absl::DeadlineExceededError("did not complete in time"));
      }
    }
    if (!failure.status.ok()) End(failure);
    Pause(turn);
  }
}

NcclSession::Failure NcclSession::FailureOf(const Order& order, const Open& open,
                                            absl::Status status) {
  return {.status = std::move(status),
          .where = absl::StrCat(open.group, " ", open.text, " #", open.sequence, " (",
                                open.as_started.size_bytes, " B)"),
          .stuck = open.as_started,
          .members = order.members};
}

NcclSession::Failure NcclSession::FailureAt(const Order& order, absl::Status status) {
  if (order.open.empty()) return {.status = std::move(status)};
  return FailureOf(order, order.open.front(), std::move(status));
}

NcclSession::Failure NcclSession::Look(MonotonicTime now) {
  MutexLock lock(&nccl_mutex_);
  if (failing_) return {};
  for (Order& order : orders_) {
    absl::Status status = Collect(order, now);
    if (!status.ok()) return FailureAt(order, std::move(status));
  }
  for (size_t i = 0; i < communicators_.size(); ++i) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(*communicators_[i].handle, &state);
    absl::Status status = NcclStatus(asked != ncclSuccess ? asked : state);
    if (status.ok()) continue;
    for (const Order& order : orders_) {
      if (!order.open.empty() && order.open.front().communicator == static_cast<int>(i)) {
        return FailureAt(order, std::move(status));
      }
    }
    return {.status = Annotate(status, communicators_[i].name)};
  }
  const Order* first = nullptr;
  bool is_late = false;
  for (const Order& order : orders_) {
    if (order.open.empty()) continue;
    const Open& open = order.open.front();
    is_late = is_late || now - open.since >= options_.operation_timeout;
    if (first == nullptr || open.queued < first->open.front().queued) first = &order;
  }
  if (!is_late) return {};
  return FailureAt(
      *first, absl::DeadlineExceededError(absl::StrCat(
                  "did not complete within ", absl::FormatDuration(options_.operation_timeout))));
}

void NcclSession::StartWatchdog() {
  CONVENE_CHECK(!watchdog_.joinable());
  watchdog_ = Thread("nccl watchdog", [this] { Watch(); });
}

void NcclSession::Watch() {
  cudaSetDevice(options_.cuda_device);
  // Looking at events must not spoil a graph that another thread is capturing.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  while (true) {
    {
      MutexLock lock(&status_mutex_);
      if (!stopping_) status_changed_.WaitFor(&status_mutex_, kWatchInterval);
      if (stopping_ || !status_.ok()) return;
    }
    Failure failure = Look(Clock::Real().Now());
    if (!failure.status.ok()) End(failure);
  }
}

absl::Status NcclSession::status() {
  const MonotonicTime deadline = Clock::Real().Now() + kExplanationPatience;
  MutexLock lock(&status_mutex_);
  while (!status_.ok() && !explained_) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) break;
    status_changed_.WaitFor(&status_mutex_, left);
  }
  return status_;
}

void NcclSession::Fail(const absl::Status& status) {
  CONVENE_CHECK(!status.ok());
  End({.status = status});
}

void NcclSession::End(const Failure& failure) {
  if (failure.status.ok()) return;
  const absl::Status named =
      failure.where.empty() ? failure.status : Annotate(failure.status, failure.where);
  {
    MutexLock lock(&status_mutex_);
    if (!status_.ok()) return;
    status_ = named;
  }
  // From here on no other thread enters NCCL. A thread that is inside sees the flag, and leaves.
  failing_ = true;
  // Told before the abort, which waits for kernels and may never return.
  if (!absl::IsAborted(named)) {
    spdlog::warn("all NCCL communicators are aborted, because: {}", std::string(named.message()));
  }
  std::vector<NcclProgress> own;
  std::unique_ptr<NcclPeers> peers;
  {
    MutexLock lock(&nccl_mutex_);
    own = AllProgress();
    // The message goes out before the abort, so that the other ranks find it when the abort reaches
    // them.
    if (!absl::IsAborted(failure.status)) {
      peers =
          NcclPeers::Publish(options_.open_store, options_.key_prefix, options_.global_rank, own);
    }
    AbortAll();
    for (Order& order : orders_) {
      for (const Open& open : order.open) {
        options_.recorder->Finish(open.record, failure.status);
      }
    }
  }
  if (absl::IsDeadlineExceeded(failure.status)) options_.recorder->Log();
  absl::Status explained = named;
  if (peers != nullptr && !failure.where.empty()) {
    std::map<int, std::vector<NcclProgress>> told = peers->Ask(failure.members);
    told[options_.global_rank] = own;
    explained = absl::Status(
        named.code(),
        absl::StrCat(named.message(), ": ", ExplainStall(failure.stuck, failure.members, told)));
  }
  MutexLock lock(&status_mutex_);
  status_ = explained;
  explained_ = true;
  status_changed_.SignalAll();
}

std::vector<NcclProgress> NcclSession::AllProgress() {
  std::vector<NcclProgress> all;
  for (const Order& order : orders_) {
    if (order.progress.started > 0) all.push_back(order.progress);
  }
  return all;
}

bool NcclSession::IsBusy() {
  const MonotonicTime now = Clock::Real().Now();
  for (Order& order : orders_) {
    if (!Collect(order, now).ok() || !order.open.empty()) return true;
  }
  return false;
}

void NcclSession::AbortAll() {
  registrations_.clear();  // go with their communicators
  if (communicators_.empty()) return;
  ncclGroupStart();
  for (size_t i = 0; i < communicators_.size(); ++i) {
    if (static_cast<int>(i) != queueing_) ncclCommAbort(*communicators_[i].handle);
  }
  if (queueing_ >= 0) ncclCommAbort(*communicators_[queueing_].handle);
  const absl::Status ended = NcclStatus(ncclGroupEnd());
  if (!ended.ok()) {
    spdlog::warn("NCCL communicators were not aborted cleanly: {}", std::string(ended.message()));
  }
  communicators_.clear();
}

void NcclSession::FinalizeAll() {
  if (failing_ || IsBusy()) {
    AbortAll();
    return;
  }
  const MonotonicTime deadline = Clock::Real().Now() + kFarewellPatience;
  for (const auto& [data, registration] : registrations_) Deregister(registration);
  registrations_.clear();
  while (!communicators_.empty()) {
    const ncclComm_t handle = *communicators_.front().handle;
    absl::Status status = NcclStatus(ncclCommFinalize(handle));
    if (status.ok()) status = AwaitQueued(handle, deadline);
    if (!status.ok()) {
      spdlog::warn("the communicator {} and all later ones are ended by abort, because: {}",
                   communicators_.front().name, std::string(status.message()));
      AbortAll();
      return;
    }
    ncclCommDestroy(handle);
    communicators_.erase(communicators_.begin());
  }
}

absl::Status NcclSession::RegisterMemory(void* data, size_t bytes) {
  {
    MutexLock lock(&nccl_mutex_);
    if (!failing_) {
      // An error does not end the loop: the other ranks may wait for this one's part of a window.
      absl::Status first;
      const MonotonicTime deadline = Clock::Real().Now() + options_.operation_timeout;
      Registration registration(communicators_.size());
      for (size_t i = 0; i < communicators_.size(); ++i) {
        if (!communicators_[i].traits.takes_memory) continue;
        const absl::Status status =
            Register(communicators_[i], data, bytes, deadline, registration[i]);
        if (first.ok() && !status.ok()) {
          first = Annotate(status, absl::StrCat(communicators_[i].name, " communicator"));
        }
      }
      if (first.ok()) {
        registrations_[data] = std::move(registration);
      } else {
        Deregister(registration);
      }
      return first;
    }
  }
  return status();
}

absl::Status NcclSession::Register(const Communicator& communicator, void* data, size_t bytes,
                                   MonotonicTime deadline, Handles& handles) {
  const ncclComm_t handle = *communicator.handle;
  bool is_registered = false;
  if (communicator.traits.has_equal_memory && options_.has_windows) {
    auto window = std::make_unique<ncclWindow_t>(nullptr);
    // Where the GPUs do not reach each other's memory, NCCL registers locally instead.
    absl::Status made = NcclStatus(
        ncclCommWindowRegister(handle, data, bytes, window.get(), NCCL_WIN_COLL_SYMMETRIC));
    if (made.ok()) made = AwaitQueued(handle, deadline);
    if (!made.ok()) {
      unmade_windows_.push_back(std::move(window));
      return made;
    }
    is_registered = *window != nullptr;
    if (is_registered) handles.window = std::move(window);
  } else {
    void* local = nullptr;
    CONVENE_RETURN_IF_ERROR(NcclStatus(ncclCommRegister(handle, data, bytes, &local)));
    is_registered = local != nullptr;
    handles.local = local;
  }
  if (is_registered) return absl::OkStatus();
  return absl::FailedPreconditionError("NCCL registers none (NCCL_LOCAL_REGISTER=0?)");
}

void NcclSession::Deregister(const Registration& registration) {
  for (size_t i = 0; i < registration.size(); ++i) {
    const ncclComm_t handle = *communicators_[i].handle;
    if (registration[i].local != nullptr) ncclCommDeregister(handle, registration[i].local);
    if (registration[i].window == nullptr) continue;
    if (NcclStatus(ncclCommWindowDeregister(handle, *registration[i].window)).ok()) {
      (void)AwaitQueued(handle, Clock::Real().Now() + kFarewellPatience);
    }
  }
}

void NcclSession::DeregisterMemory(void* data) {
  {
    MutexLock lock(&nccl_mutex_);
    if (!failing_) {
      const auto found = registrations_.find(data);
      if (found == registrations_.end()) return;
      Deregister(found->second);
      registrations_.erase(found);
      return;
    }
  }
  (void)status();  // waits for a thread that is just ending the session and still uses it
}

}  // namespace convene::worker
