// When blocks are registered, and in which order everything goes, with NCCL played.
#include "worker_runtime/comm/nccl/nccl_memory.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/nccl/session.h"
#include "worker_runtime/comm/nccl/testing/played_nccl.h"
#include "worker_runtime/comm/testing/loopback.h"

namespace convene::worker {
namespace {

using testing::PlayedNccl;
using Calls = std::vector<std::string>;

constexpr size_t kBytes = 4096;

MonotonicTime Soon() { return Clock::Real().Now() + absl::Seconds(5); }

// A job of two ranks, threads of this process. Rank 0 has the communicators 1 (dp) and 2 (tp), rank
// 1 has 3 and 4.
class Job {
 public:
  explicit Job(bool dp_takes_memory = true) : sets_(LoopbackCommunicators({.dp = 2})) {
    for (int rank = 0; rank < 2; ++rank) {
      sessions_.push_back(std::make_shared<NcclSession>(NcclSessionOptions{
          .global_rank = rank, .operation_timeout = absl::Minutes(1), .recorder = &recorder_}));
      for (const char* const name : {"dp", "tp"}) {
        REQUIRE_OK(sessions_[rank]->MakeCommunicator(
            name, 2, rank, {}, Soon(), {.takes_memory = name[0] != 'd' || dp_takes_memory}));
      }
      memories_.push_back(std::make_unique<NcclMemory>(sessions_[rank], *sets_[rank].host));
    }
  }

  // On both ranks at once.
  void Allocate() {
    absl::Status ends[2];
    const auto allocate = [&](int rank) {
      const auto data = memories_[rank]->Allocate(kBytes);
      ends[rank] = data.status();
      if (data.ok()) blocks_[rank] = *data;
    };
    Thread other("other", [&] { allocate(1); });
    allocate(0);
    other.Join();
    CHECK_OK(ends[0]);
    CHECK_OK(ends[1]);
  }
  void Free() {
    for (int rank = 0; rank < 2; ++rank) memories_[rank]->Free(blocks_[rank], kBytes);
  }
  void EndSessions() { sessions_.clear(); }
  NcclSession& session(int rank) { return *sessions_[rank]; }

 private:
  FlightRecorder recorder_{16, Clock::Real()};
  std::vector<CommunicatorSet> sets_;
  std::vector<std::shared_ptr<NcclSession>> sessions_;
  std::vector<std::unique_ptr<NcclMemory>> memories_;
  void* blocks_[2] = {};
};

int Count(const Calls& calls, const std::string& call) {
  return static_cast<int>(std::count(calls.begin(), calls.end(), call));
}

// Where the call stands; -1: nowhere.
int Place(const Calls& calls, const std::string& call) {
  const auto found = std::find(calls.begin(), calls.end(), call);
  return found == calls.end() ? -1 : static_cast<int>(found - calls.begin());
}

TEST_CASE("when all goes well a block is deregistered, then freed, before its communicators end") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  {
    Job job;
    job.Allocate();
    job.Free();
    const Calls calls = nccl.Calls();
    for (const char* const communicator : {"1", "2", "3", "4"}) {
      CHECK(Count(calls, std::string("register ") + communicator) == 1);
      CHECK(Count(calls, std::string("deregister ") + communicator) == 1);
    }
    CHECK(Place(calls, "deregister 2") < Place(calls, "free 0"));
  }
  const Calls calls = nccl.Calls();
  CHECK(Place(calls, "free 0") < Place(calls, "finalize 1"));
  CHECK(Place(calls, "finalize 1") < Place(calls, "destroy 1"));
  CHECK(Place(calls, "grouped abort 1") == -1);
}

TEST_CASE("after an abort a block is freed, and NCCL is not asked about it again") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Job job;
  job.Allocate();
  for (int rank = 0; rank < 2; ++rank) job.session(rank).Fail(absl::AbortedError("a peer is gone"));
  SECTION("while the sessions still live") {}
  SECTION("when they are gone, too") { job.EndSessions(); }
  job.Free();
  const Calls calls = nccl.Calls();
  CHECK(Count(calls, "free 0") == 2);
  CHECK(Place(calls, "grouped abort 4") < Place(calls, "free 0"));
  CHECK(Place(calls, "deregister 1") == -1);
}

TEST_CASE("communicators that end first deregister what is theirs, the block goes after them") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Job job;
  job.Allocate();
  job.EndSessions();
  job.Free();
  const Calls calls = nccl.Calls();
  CHECK(Place(calls, "deregister 2") < Place(calls, "finalize 1"));
  CHECK(Count(calls, "deregister 1") == 1);
  CHECK(Place(calls, "destroy 4") < Place(calls, "free 0"));
}

TEST_CASE("a communicator that takes no memory is left out, and the others have theirs") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Job job(/*dp_takes_memory=*/false);
  job.Allocate();
  job.Free();
  const Calls calls = nccl.Calls();
  for (const char* const dp : {"1", "3"}) {
    CHECK(Count(calls, std::string("register ") + dp) == 0);
    CHECK(Count(calls, std::string("deregister ") + dp) == 0);
  }
  for (const char* const tp : {"2", "4"}) {
    CHECK(Count(calls, std::string("register ") + tp) == 1);
    CHECK(Count(calls, std::string("deregister ") + tp) == 1);
  }
}

TEST_CASE("what one rank cannot register, none does") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  SECTION("because NCCL refuses") { nccl.SetRegistration(4, ncclSystemError, true); }
  SECTION("because NCCL_LOCAL_REGISTER=0 is set there") {
    nccl.SetRegistration(4, ncclSuccess, false);
  }
  Job job;
  job.Allocate();
  const Calls registered = nccl.Calls();
  CHECK(Count(registered, "deregister 1") == 1);
  CHECK(Count(registered, "deregister 2") == 1);
  CHECK(Count(registered, "deregister 3") == 1);
  CHECK(Count(registered, "deregister 4") == 0);
  job.Free();
  CHECK(Count(nccl.Calls(), "deregister 1") == 1);
  CHECK(Count(nccl.Calls(), "free 0") == 2);
}

TEST_CASE("a rank that NCCL gives no block takes a plain one, and none is registered") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetAllocation(ncclUnhandledCudaError, cudaSuccess);
  Job job;
  job.Allocate();
  const Calls allocated = nccl.Calls();
  CHECK(Count(allocated, "plain allocate 0") == 1);
  for (const char* const call : {"register 1", "register 3"}) CHECK(Count(allocated, call) == 0);
  job.Free();
  const Calls freed = nccl.Calls();
  CHECK(Count(freed, "free 0") == 1);
  CHECK(Count(freed, "plain free 0") == 1);
}

TEST_CASE("a GPU without room says so, and what NCCL said") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  std::vector<CommunicatorSet> sets = LoopbackCommunicators({.dp = 2});
  FlightRecorder recorder(16, Clock::Real());
  const auto session = std::make_shared<NcclSession>(
      NcclSessionOptions{.operation_timeout = absl::Minutes(1), .recorder = &recorder});
  NcclMemory memory(session, *sets[0].host);
  nccl.SetAllocation(ncclUnhandledCudaError, cudaErrorMemoryAllocation);
  const absl::Status status = memory.Allocate(kBytes).status();
  CHECK_STATUS(status, absl::StatusCode::kResourceExhausted, "no block of 4");
  CHECK_THAT(std::string(status.message()), Catch::Contains("ncclMemAlloc: NCCL: "));
}

TEST_CASE("a rank whose peer is gone gets no block, and no memory is left") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  std::vector<CommunicatorSet> sets =
      LoopbackCommunicators({.dp = 2}, {.timeout = absl::Milliseconds(20)});
  FlightRecorder recorder(16, Clock::Real());
  const auto session = std::make_shared<NcclSession>(
      NcclSessionOptions{.operation_timeout = absl::Minutes(1), .recorder = &recorder});
  REQUIRE_OK(session->MakeCommunicator("dp", 2, 0, {}, Soon()));
  NcclMemory memory(session, *sets[0].host);
  CHECK_STATUS(memory.Allocate(kBytes), absl::StatusCode::kDeadlineExceeded, "host all_reduce");
  const Calls calls = nccl.Calls();
  CHECK(Count(calls, "register 1") == 0);
  CHECK(Count(calls, "free 0") == 1);
}

TEST_CASE("a rank whose peer goes while both register gets no block either") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  std::vector<CommunicatorSet> sets =
      LoopbackCommunicators({.dp = 2}, {.timeout = absl::Milliseconds(500)});
  FlightRecorder recorder(16, Clock::Real());
  const auto session = std::make_shared<NcclSession>(
      NcclSessionOptions{.operation_timeout = absl::Minutes(1), .recorder = &recorder});
  REQUIRE_OK(session->MakeCommunicator("dp", 2, 0, {}, Soon()));
  NcclMemory memory(session, *sets[0].host);
  absl::Status other_agreed;
  Thread other("other", [&] {
    float missing = 0;
    Stream stream = Stream::Cpu();
    other_agreed = sets[1].host->AllReduce(absl::MakeSpan(&missing, 1), ReduceOp::kMax, stream);
  });
  const absl::Status status = memory.Allocate(kBytes).status();
  other.Join();
  CHECK_OK(other_agreed);
  CHECK_STATUS(status, absl::StatusCode::kDeadlineExceeded, "host all_reduce");
  const Calls calls = nccl.Calls();
  CHECK(Count(calls, "register 1") == 1);
  CHECK(Count(calls, "deregister 1") == 1);
  CHECK(Count(calls, "free 0") == 1);
}

}  // namespace
}  // namespace convene::worker
