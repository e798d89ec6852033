// The session's decisions without a GPU: played_nccl plays NCCL and CUDA's events.
#include "worker_runtime/comm/nccl/session.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/nccl/stall.h"
#include "worker_runtime/comm/nccl/testing/borrowed_store.h"
#include "worker_runtime/comm/nccl/testing/played_nccl.h"
#include "worker_runtime/comm/testing/memory_store.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {
namespace {

using testing::MemoryStore;
using testing::OpeningOf;
using testing::PlayedNccl;

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

  absl::Status AllReduce(ncclResult_t result = ncclSuccess, int communicator = 0) {
    return session_.Start({.communicator = communicator,
                           .order = communicator,
                           .group = communicator == 0 ? "dp" : "tp",
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
  std::string Dump() const { return recorder_.Dump(16); }
  // The progress that the session told the others.
  absl::StatusOr<std::string> Told() {
    return store_.Get("epoch/1/nccl/progress/0", absl::ZeroDuration());
  }

 private:
  MemoryStore store_;
  FlightRecorder recorder_;
  NcclSession session_;
};

TEST_CASE("communicators are non-blocking and end in order when all is well") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  { Rank rank(absl::Minutes(1)); }
  CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "finalize 1", "destroy 1",
                                                 "finalize 2", "destroy 2"});
}

TEST_CASE("an operation is finished when its event has passed, not before") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  REQUIRE_OK(rank.AllReduce());
  CHECK_THAT(rank.Dump(), Catch::Contains("dp #1 all_reduce 4096 B fp32  started, unfinished"));
  Thread gpu("gpu", [&] { nccl.SetGpuIsSlow(false); });
  CHECK_OK(rank.session().Await(0, Soon()));
  gpu.Join();
  CHECK_THAT(rank.Dump(), Catch::Contains("dp #1 all_reduce 4096 B fp32  finished after"));
}

TEST_CASE("an operation over its time ends all communicators at once, and names the missing rank") {
  const convene::testing::LoggedText log;
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
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
  CHECK(log.CountOf("aborted, because: dp all_reduce #1 (4096 B): did not complete") == 1);
  CHECK(nccl.Calls() ==
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

TEST_CASE("where several operations are open the one that was queued first is named") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Rank rank(absl::Milliseconds(20));
  // It is done, but the watchdog, which gives the next one its time, has not looked yet.
  REQUIRE_OK(rank.AllReduce(ncclSuccess, 1));
  nccl.SetGpuIsSlow(true);
  REQUIRE_OK(rank.AllReduce(ncclSuccess, 1));
  REQUIRE_OK(rank.AllReduce(ncclSuccess, 0));
  rank.session().StartWatchdog();
  CHECK_STATUS(rank.session().Await(0, Soon()), absl::StatusCode::kDeadlineExceeded,
               "tp all_reduce #2 (4096 B): did not complete within 20ms");
}

TEST_CASE("a host that waits past its deadline says who is missing") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  rank.PeerTells(0);
  REQUIRE_OK(rank.AllReduce());
  CHECK_STATUS(rank.session().Await(0, Clock::Real().Now()), absl::StatusCode::kDeadlineExceeded,
               "dp all_reduce #1 (4096 B): did not complete in time: rank 1 never started it");
}

TEST_CASE("an error of the library is found while the operation waits") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  rank.PeerTells(1);
  REQUIRE_OK(rank.AllReduce());
  rank.session().StartWatchdog();
  nccl.SetState(1, ncclRemoteError);
  const absl::Status status = rank.session().Await(0, Soon());
  CHECK_STATUS(status, absl::StatusCode::kUnavailable, "dp all_reduce #1 (4096 B): NCCL: ");
}

TEST_CASE("an error of the call itself ends the session") {
  PlayedNccl::Reset();
  Rank rank(absl::Minutes(1));
  rank.PeerTells(1);
  const absl::Status status = rank.AllReduce(ncclInvalidArgument);
  CHECK_STATUS(status, absl::StatusCode::kInvalidArgument, "dp all_reduce #1 (4096 B): NCCL: ");
  CHECK(rank.AllReduce() == status);
}

TEST_CASE("the communicator that NCCL is queueing in is aborted last, with the others' flags set") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Rank rank(absl::Minutes(1));
  CHECK_STATUS(rank.AllReduce(ncclSystemError), absl::StatusCode::kUnavailable, "all_reduce");
  CHECK(nccl.Calls() ==
        std::vector<std::string>{"init 1", "init 2", "grouped abort 2", "grouped abort 1"});
}

TEST_CASE("a communicator that is not made is aborted, after those that are") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  const ncclResult_t end = GENERATE(ncclRemoteError, ncclInProgress);
  const bool hangs = end == ncclInProgress;
  Rank rank(absl::Minutes(1));
  nccl.SetEndOfInit(end);
  const MonotonicTime deadline = hangs ? Clock::Real().Now() + absl::Milliseconds(10) : Soon();
  const auto made = rank.session().MakeCommunicator("pp", 2, 0, {}, deadline);
  CHECK_STATUS(made, hangs ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
               "pp communicator: ");
  rank.session().Fail(made.status());
  CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "init 3", "grouped abort 1",
                                                 "grouped abort 2", "grouped abort 3"});
}

TEST_CASE("an abort wakes a thread that is queueing, and one that waits") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
  Rank rank(absl::Minutes(1));
  REQUIRE_OK(rank.AllReduce());
  absl::Status waiting;
  Thread waiter("waiter", [&] { waiting = rank.session().Await(0, Soon()); });
  nccl.SetState(1, ncclInProgress);
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
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
  nccl.SetCapturing();
  Rank rank(absl::ZeroDuration());
  REQUIRE_OK(rank.AllReduce());
  CHECK_OK(rank.session().Await(0, Soon()));
}

TEST_CASE("registered memory is given back before its communicators, and not after an abort") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  int data = 0, other_data = 0;
  SECTION("all is well") {
    {
      Rank rank(absl::Minutes(1));
      REQUIRE_OK(rank.session().RegisterMemory(&data, sizeof(data)));
      REQUIRE_OK(rank.session().RegisterMemory(&other_data, sizeof(other_data)));
      rank.session().DeregisterMemory(&data);
      rank.session().DeregisterMemory(&data);  // is not registered any more
    }
    CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "register 1", "register 2",
                                                   "register 1", "register 2", "deregister 1",
                                                   "deregister 2", "deregister 1", "deregister 2",
                                                   "finalize 1", "destroy 1", "finalize 2",
                                                   "destroy 2"});
  }
  SECTION("it was aborted") {
    {
      Rank rank(absl::Minutes(1));
      REQUIRE_OK(rank.session().RegisterMemory(&data, sizeof(data)));
      rank.session().Fail(absl::AbortedError("stop"));
      rank.session().DeregisterMemory(&data);
      CHECK_STATUS(rank.session().RegisterMemory(&data, sizeof(data)), absl::StatusCode::kAborted,
                   "stop");
    }
    CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "register 1", "register 2",
                                                   "grouped abort 1", "grouped abort 2"});
  }
}

TEST_CASE("what one communicator cannot register, none has") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  int data = 0;
  Rank rank(absl::Minutes(1));
  nccl.SetRegistration(2, ncclSystemError, true);
  CHECK_STATUS(rank.session().RegisterMemory(&data, sizeof(data)), absl::StatusCode::kUnavailable,
               "tp communicator: NCCL: ");
  CHECK(nccl.Calls() ==
        std::vector<std::string>{"init 1", "init 2", "register 1", "register 2", "deregister 1"});
  // The other ranks may wait for this one in a later communicator.
  nccl.SetRegistration(1, ncclSystemError, true);
  CHECK_STATUS(rank.session().RegisterMemory(&data, sizeof(data)), absl::StatusCode::kUnavailable,
               "dp communicator: NCCL: ");
  const std::vector<std::string> calls = nccl.Calls();
  CHECK(std::vector<std::string>(calls.end() - 3, calls.end()) ==
        std::vector<std::string>{"register 1", "register 2", "deregister 2"});
  nccl.SetRegistration(1, ncclSuccess, false);
  CHECK_STATUS(rank.session().RegisterMemory(&data, sizeof(data)),
               absl::StatusCode::kFailedPrecondition, "NCCL_LOCAL_REGISTER=0");
}

TEST_CASE("communicators on which something still runs end by abort, with what is registered") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetGpuIsSlow(true);
  int data = 0;
  {
    Rank rank(absl::Minutes(1));
    REQUIRE_OK(rank.session().RegisterMemory(&data, sizeof(data)));
    REQUIRE_OK(rank.AllReduce());
  }
  CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "register 1", "register 2",
                                                 "grouped abort 1", "grouped abort 2"});
}

TEST_CASE("ranks with equal memory make windows, from the version of NCCL on that has them") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  FlightRecorder recorder(16, Clock::Real());
  int data = 0;
  const auto run = [&](bool has_windows) {
    NcclSession session({.operation_timeout = absl::Milliseconds(20),
                         .has_windows = has_windows,
                         .recorder = &recorder});
    REQUIRE_OK(session.MakeCommunicator("dp", 2, 0, {}, Soon(), {.has_equal_memory = true}));
    REQUIRE_OK(session.MakeCommunicator("world", 2, 0, {}, Soon()));
    return session.RegisterMemory(&data, sizeof(data));
  };
  SECTION("it has them") {
    CHECK_OK(run(true));
    CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "register window 1",
                                                   "register 2", "deregister window 1",
                                                   "deregister 2", "finalize 1", "destroy 1",
                                                   "finalize 2", "destroy 2"});
  }
  SECTION("it is older") {
    CHECK_OK(run(false));
    CHECK(nccl.Calls() == std::vector<std::string>{"init 1", "init 2", "register 1", "register 2",
                                                   "deregister 1", "deregister 2", "finalize 1",
                                                   "destroy 1", "finalize 2", "destroy 2"});
  }
  SECTION("another rank does not come") {
    NcclSession session(
        {.operation_timeout = absl::Milliseconds(20), .has_windows = true, .recorder = &recorder});
    REQUIRE_OK(session.MakeCommunicator("dp", 2, 0, {}, Soon(), {.has_equal_memory = true}));
    nccl.SetState(1, ncclInProgress);
    CHECK_STATUS(session.RegisterMemory(&data, sizeof(data)), absl::StatusCode::kDeadlineExceeded,
                 "dp communicator: the other ranks");
    session.Fail(absl::AbortedError("stop"));
  }
  SECTION("another rank comes to none of several communicators") {
    NcclSession session(
        {.operation_timeout = absl::Milliseconds(20), .has_windows = true, .recorder = &recorder});
    for (const uintptr_t number : {1, 2, 3}) {
      REQUIRE_OK(session.MakeCommunicator("dp", 2, 0, {}, Soon(), {.has_equal_memory = true}));
      nccl.SetState(number, ncclInProgress);
    }
    const int asks_before = nccl.Asks(2);
    CHECK_STATUS(session.RegisterMemory(&data, sizeof(data)), absl::StatusCode::kDeadlineExceeded,
                 "dp communicator: the other ranks");
    // They share one deadline.
    CHECK(nccl.Asks(2) == asks_before + 1);
    CHECK(nccl.Asks(3) == asks_before + 1);
    session.Fail(absl::AbortedError("stop"));
  }
}

TEST_CASE("a communicator's kernels have no more blocks than it was made for") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  FlightRecorder recorder(16, Clock::Real());
  NcclSession session({.operation_timeout = absl::Seconds(5), .recorder = &recorder});
  REQUIRE_OK(session.MakeCommunicator("tp", 2, 0, {}, Soon(), {.blocks_max = 16}));
  REQUIRE_OK(session.MakeCommunicator("pp", 2, 0, {}, Soon()));
  CHECK(nccl.Calls() == std::vector<std::string>{"init of 16 blocks 1", "init 2"});
}

}  // namespace
}  // namespace convene::worker
