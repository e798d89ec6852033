// The session's decisions without a GPU: this file plays NCCL and CUDA's events.
#include "worker_runtime/comm/nccl/session.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/memory_store.h"
#include "worker_runtime/comm/nccl/borrowed_store.h"
#include "worker_runtime/comm/nccl/stall.h"
#include "worker_runtime/device/elements.h"

namespace {

// What the library and the GPU do next, and what they were told. One for the process, as they are.
struct Machine {
  convene::Mutex mutex;
  // Communicators and events are numbers in the clothes of pointers.
  uintptr_t made ABSL_GUARDED_BY(mutex) = 0;
  std::set<cudaEvent_t> pending ABSL_GUARDED_BY(mutex);
  bool gpu_is_slow ABSL_GUARDED_BY(mutex) = false;  // recorded events stay pending
  std::map<ncclComm_t, ncclResult_t> states ABSL_GUARDED_BY(mutex);
  bool capturing ABSL_GUARDED_BY(mutex) = false;
  int group_depth ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::string> calls ABSL_GUARDED_BY(mutex);
};
Machine& TheMachine() {
  static Machine& machine = *new Machine;
  return machine;
}

std::string NameOf(ncclComm_t communicator) {
  return std::to_string(reinterpret_cast<uintptr_t>(communicator));
}

void Reset() {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  machine.made = 0;
  machine.pending.clear();
  machine.states.clear();
  machine.calls.clear();
  machine.gpu_is_slow = false;
  machine.capturing = false;
}
void SetGpuIsSlow(bool slow) {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  machine.gpu_is_slow = slow;
  if (!slow) machine.pending.clear();
}
void SetCapturing() {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  machine.capturing = true;
}
void SetState(uintptr_t communicator, ncclResult_t state) {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  machine.states[reinterpret_cast<ncclComm_t>(communicator)] = state;
}
std::vector<std::string> Calls() {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  return machine.calls;
}

}  // namespace

extern "C" {

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int, ncclUniqueId, int,
                                    ncclConfig_t* config) {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  *communicator = reinterpret_cast<ncclComm_t>(++machine.made);
  machine.calls.push_back(config->blocking == 0 ? "init " + NameOf(*communicator) : "blocking");
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* state) {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  const auto found = machine.states.find(communicator);
  *state = found == machine.states.end() ? ncclSuccess : found->second;
  return ncclSuccess;
}
ncclResult_t Record(const char* deed, ncclComm_t communicator) {
  Machine& machine = TheMachine();
  convene::MutexLock lock(&machine.mutex);
  machine.calls.push_back((machine.group_depth > 0 ? "grouped " : "") + std::string(deed) + " " +
                          NameOf(communicator));
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) { return Record("abort", communicator); }
ncclResult_t ncclCommFinalize(ncclComm_t communicator) { return Record("finalize", communicator); }
ncclResult_t ncclCommDestroy(ncclComm_t communicator) { return Record("destroy", communicator); }
ncclResult_t ncclGroupStart() {
  convene::MutexLock lock(&TheMachine().mutex);
  ++TheMachine().group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  convene::MutexLock lock(&TheMachine().mutex);
  --TheMachine().group_depth;
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* data, size_t, void** handle) {
  *handle = data;
  return Record("register", communicator);
}
ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void*) {
  return Record("deregister", communicator);
}

cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  convene::MutexLock lock(&TheMachine().mutex);
  *status = TheMachine().capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  static std::atomic<uintptr_t> events = 0;
  *event = reinterpret_cast<cudaEvent_t>(++events);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  convene::MutexLock lock(&TheMachine().mutex);
  if (TheMachine().gpu_is_slow) TheMachine().pending.insert(event);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  convene::MutexLock lock(&TheMachine().mutex);
  return TheMachine().pending.count(event) > 0 ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

}  // extern "C"

namespace convene::worker {
namespace {

using testing::MemoryStore;
using testing::OpeningOf;

MonotonicTime Soon() { return Clock::Real().Now() + absl::Seconds(5); }

// Rank 0 of two, with the communicators "dp" (number 1) and "tp" (2).
class Rank {
 public:
  explicit Rank(absl::Duration operation_timeout)
      : recorder_(16, Clock::Real()),
        session_({.global_rank = 0,
                  .operation_timeout = operation_timeout,
                  .recorder = &recorder_,
                  .open_store = OpeningOf(store_),
                  .key_prefix = "epoch/1"}) {
    for (const char* const name : {"dp", "tp"}) {
      REQUIRE_OK(session_.MakeCommunicator(name, 2, 0, {}, Soon()));
      session_.MakeOrder(name, {0, 1});
    }
  }

  absl::Status AllReduce(ncclResult_t result = ncclSuccess) {
    return session_.Start({.communicator = 0,
                           .order = 0,
                           .group = "dp",
                           .operation = "all_reduce",
                           .counted_as = "all_reduce",
                           .data = ConstElements(nullptr, 1024, DType::kFloat32)},
                          [&](ncclComm_t) { return result; });
  }
  // Rank 1 has told that it started this many.
  void PeerTells(uint64_t started) {
    REQUIRE_OK(store_.Set(
        "epoch/1/nccl/progress/1",
        SerializeProgress(
            {{.order = "dp", .started = started, .operation = "all_reduce", .size_bytes = 4096}})));
  }
  NcclSession& session() { return session_; }
  std::string Dump() const { return recorder_.Dump(); }
  // What it told the others.
  absl::StatusOr<std::string> Told() {
    return store_.Get("epoch/1/nccl/progress/0", absl::ZeroDuration());
  }

 private:
  MemoryStore store_;
  FlightRecorder recorder_;
  NcclSession session_;
};

TEST_CASE("communicators are non-blocking and end in order when all is well") {
  Reset();
  { Rank rank(absl::Minutes(1)); }
  CHECK(Calls() == std::vector<std::string>{"init 1", "init 2", "finalize 1", "destroy 1",
                                            "finalize 2", "destroy 2"});
}

TEST_CASE("an operation is finished when its event has passed, not before") {
  Reset();
  SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  REQUIRE_OK(rank.AllReduce());
  CHECK_THAT(rank.Dump(), Catch::Contains("dp #1 all_reduce 4096 B fp32  started, unfinished"));
  Thread gpu("gpu", [] { SetGpuIsSlow(false); });
  CHECK_OK(rank.session().Await(0, Soon()));
  gpu.Join();
  CHECK_THAT(rank.Dump(), Catch::Contains("dp #1 all_reduce 4096 B fp32  finished after"));
}

TEST_CASE("an operation over its time ends all communicators at once, and names the missing rank") {
  Reset();
  SetGpuIsSlow(true);
  Rank rank(absl::Milliseconds(20));
  rank.PeerTells(1);
  REQUIRE_OK(rank.AllReduce());
  REQUIRE_OK(rank.AllReduce());
  rank.session().StartWatchdog();
  const absl::Status status = rank.session().Await(0, Soon());
  CHECK_STATUS(status, absl::StatusCode::kDeadlineExceeded,
               "dp all_reduce #1 (4096 B): did not complete within 20ms: all 2 ranks started it");
  CHECK(rank.AllReduce() == status);
  CHECK(rank.session().Await(0, Soon()) == status);
  CHECK(Calls() ==
        std::vector<std::string>{"init 1", "init 2", "grouped abort 1", "grouped abort 2"});
  CHECK_THAT(rank.Dump(), Catch::Contains("dp #2 all_reduce 4096 B fp32  failed after"));
  const auto told = rank.Told();
  REQUIRE_OK(told);
  const auto progress = ParseProgress(*told);
  REQUIRE_OK(progress);
  REQUIRE(progress->size() == 1);
  CHECK(progress->front().started == 2);
  CHECK(progress->front().completed == 0);
}

TEST_CASE("a host that waits past its deadline says who is missing") {
  Reset();
  SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  rank.PeerTells(0);
  REQUIRE_OK(rank.AllReduce());
  CHECK_STATUS(rank.session().Await(0, Clock::Real().Now()), absl::StatusCode::kDeadlineExceeded,
               "dp all_reduce #1 (4096 B): did not complete in time: rank 1 never started it");
}

TEST_CASE("an error of the library is found while the operation waits") {
  Reset();
  SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  rank.PeerTells(1);
  REQUIRE_OK(rank.AllReduce());
  rank.session().StartWatchdog();
  SetState(1, ncclRemoteError);
  const absl::Status status = rank.session().Await(0, Soon());
  CHECK_STATUS(status, absl::StatusCode::kUnavailable, "dp all_reduce #1 (4096 B): NCCL: ");
}

TEST_CASE("an error of the call itself ends the session") {
  Reset();
  Rank rank(absl::Minutes(1));
  rank.PeerTells(1);
  const absl::Status status = rank.AllReduce(ncclInvalidArgument);
  CHECK_STATUS(status, absl::StatusCode::kInvalidArgument, "dp all_reduce #1 (4096 B): NCCL: ");
  CHECK(rank.AllReduce() == status);
}

TEST_CASE("an abort wakes a thread that is queueing, and one that waits") {
  Reset();
  SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  REQUIRE_OK(rank.AllReduce());
  absl::Status waiting;
  Thread waiter("waiter", [&] { waiting = rank.session().Await(0, Soon()); });
  SetState(1, ncclInProgress);
  absl::Status queueing;
  Thread queuer("queuer", [&] { queueing = rank.AllReduce(ncclInProgress); });
  rank.session().Fail(absl::AbortedError("a new epoch has begun"));
  waiter.Join();
  queuer.Join();
  CHECK_STATUS(waiting, absl::StatusCode::kAborted, "a new epoch has begun");
  CHECK(queueing == waiting);
  CHECK(rank.session().status() == waiting);
  // Nobody is to blame: nobody is asked.
  CHECK(!rank.Told().ok());
}

TEST_CASE("an operation that a graph captures is not watched") {
  Reset();
  SetGpuIsSlow(true);
  SetCapturing();
  Rank rank(absl::ZeroDuration());
  REQUIRE_OK(rank.AllReduce());
  CHECK_OK(rank.session().Await(0, Soon()));
}

TEST_CASE("registered memory is given back before its communicators, and not after an abort") {
  Reset();
  int data = 0;
  {
    Rank rank(absl::Minutes(1));
    const uint64_t first = rank.session().RegisterMemory(&data, sizeof(data));
    rank.session().RegisterMemory(&data, sizeof(data));
    rank.session().DeregisterMemory(first);
  }
  CHECK(Calls() == std::vector<std::string>{"init 1", "init 2", "register 1", "register 2",
                                            "register 1", "register 2", "deregister 1",
                                            "deregister 2", "deregister 1", "deregister 2",
                                            "finalize 1", "destroy 1", "finalize 2", "destroy 2"});
  Reset();
  {
    Rank rank(absl::Minutes(1));
    const uint64_t registration = rank.session().RegisterMemory(&data, sizeof(data));
    rank.session().Fail(absl::AbortedError("stop"));
    rank.session().DeregisterMemory(registration);
  }
  CHECK(Calls() == std::vector<std::string>{"init 1", "init 2", "register 1", "register 2",
                                            "grouped abort 1", "grouped abort 2"});
}

}  // namespace
}  // namespace convene::worker
