// The communicators that a session keeps when it ends, and their use by the next session. NCCL is
// played.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/nccl/played_nccl.h"
#include "worker_runtime/comm/nccl/session.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker {
namespace {

using testing::PlayedNccl;
using Calls = std::vector<std::string>;

MonotonicTime Soon() { return Clock::Real().Now() + absl::Seconds(5); }

// Rank 0 of three with the communicators "dp" (number 1) and "tp" (2), when it is `parent`; with
// none when it comes after one.
struct Rank {
  explicit Rank(NcclLibrary has = PlayedNccl::Library()) : library(std::move(has)) {}
  void MakeCommunicators() {
    for (const char* const name : {"dp", "tp"}) {
      REQUIRE_OK(session.MakeCommunicator(name, 3, 0, {}, Soon()));
      session.MakeOrder(name, {0, 1, 2});
    }
  }
  absl::Status AllReduce(ncclResult_t result = ncclSuccess) {
    return session.Start({.communicator = 0,
                          .order = 0,
                          .group = "dp",
                          .operation = "all_reduce",
                          .counted_as = "all_reduce",
                          .data = ConstElements(nullptr, 1024, DType::kFloat32)},
                         [&](ncclComm_t) { return result; });
  }

  NcclLibrary library;
  FlightRecorder recorder{16, Clock::Real()};
  NcclSession session{{.operation_timeout = absl::Minutes(1),
                       .recorder = &recorder,
                       .library = &library,
                       .revokes = true}};
};

struct Parent : Rank {
  explicit Parent(NcclLibrary has = PlayedNccl::Library()) : Rank(std::move(has)) {
    MakeCommunicators();
  }
};

// The calls after the parent's communicators were made.
Calls CallsSince(PlayedNccl& nccl) {
  Calls calls = nccl.Calls();
  REQUIRE(calls.size() >= 2);
  calls.erase(calls.begin(), calls.begin() + 2);
  return calls;
}

TEST_CASE(
    "a session that revokes stops all communicators before it waits for one, and keeps them") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  {
    Parent parent;
    parent.session.Fail(absl::UnavailableError("rank 2 is gone"));
    CHECK(parent.session.revoked());
    CHECK(CallsSince(nccl) == Calls{"revoke 1", "revoke 2"});
    CHECK_STATUS(parent.AllReduce(), absl::StatusCode::kUnavailable, "rank 2 is gone");
  }
  // Not finalized: that is invalid after a revoke.
  CHECK(CallsSince(nccl) == Calls{"revoke 1", "revoke 2", "grouped abort 1", "grouped abort 2"});
}

TEST_CASE("survivors shrink a revoked communicator, and abort what it was made from") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  {
    Rank next;
    Parent parent;
    parent.session.Fail(absl::UnavailableError("rank 2 is gone"));
    const auto shrunk = next.session.ShrinkCommunicator(parent.session, 0, {2}, Soon());
    REQUIRE_OK(shrunk);
    CHECK(*shrunk == 0);
    next.session.MakeOrder("dp", {0, 1});
    CHECK_OK(next.AllReduce());
    CHECK_OK(next.session.Await(0, Soon()));
    CHECK_FALSE(next.session.revoked());
  }
  CHECK(CallsSince(nccl) == Calls{"revoke 1", "revoke 2", "shrink without 2: 1", "made 3",
                                  "grouped abort 1", "grouped abort 2", "finalize 3", "destroy 3"});
}

TEST_CASE("a group that is well shrinks without being revoked") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Rank next;
  Parent parent;
  CHECK_OK(next.session.ShrinkCommunicator(parent.session, 1, {1, 2}, Soon()));
  CHECK(CallsSince(nccl) == Calls{"shrink without 1,2: 2", "made 3"});
  CHECK_OK(parent.AllReduce());
}

TEST_CASE("a shrink that fails ends both sessions by abort, and leaves nothing behind") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  const ncclResult_t end = GENERATE(ncclRemoteError, ncclInProgress);
  nccl.SetEndOf("shrink", end);
  const bool hangs = end == ncclInProgress;
  {
    Rank next;
    Parent parent;
    parent.session.Fail(absl::UnavailableError("rank 2 is gone"));
    const MonotonicTime deadline = hangs ? Clock::Real().Now() + absl::Milliseconds(10) : Soon();
    CHECK_STATUS(next.session.ShrinkCommunicator(parent.session, 0, {2}, deadline),
                 hangs ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
                 "dp communicator: ");
    CHECK_FALSE(parent.session.revoked());
    // The one that NCCL is still at comes last: its thread is joined with the others' flags set.
    CHECK(CallsSince(nccl) == Calls{"revoke 1", "revoke 2", "shrink without 2: 1",
                                    "grouped abort 2", "grouped abort 1"});
    CHECK_STATUS(next.session.ShrinkCommunicator(parent.session, 0, {2}, Soon()),
                 absl::StatusCode::kFailedPrecondition, "make new ones");
    next.session.Fail(absl::UnavailableError("as its parent"));
  }
  CHECK(CallsSince(nccl).back() == "grouped abort 0");
}

TEST_CASE("what cannot be revoked is aborted") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Calls aborted = {"grouped abort 1", "grouped abort 2"};
  SECTION("because the library has no revoke") {
    NcclLibrary library = PlayedNccl::Library();
    library.revoke = nullptr;
    Parent parent(library);
    parent.session.Fail(absl::UnavailableError("rank 2 is gone"));
    CHECK_FALSE(parent.session.revoked());
    CHECK(CallsSince(nccl) == aborted);
  }
  SECTION("because NCCL is queueing an operation") {
    Parent parent;
    CHECK_STATUS(parent.AllReduce(ncclSystemError), absl::StatusCode::kUnavailable, "all_reduce");
    CHECK_FALSE(parent.session.revoked());
    CHECK(CallsSince(nccl) == Calls{"grouped abort 2", "grouped abort 1"});
  }
  SECTION("because a proxy's error stays") {
    nccl.SetEndOf("revoke", ncclRemoteError);
    Parent parent;
    parent.session.Fail(absl::UnavailableError("rank 2 is gone"));
    CHECK_FALSE(parent.session.revoked());
    CHECK(CallsSince(nccl) == Calls{"revoke 1", "revoke 2", "grouped abort 1", "grouped abort 2"});
  }
}

TEST_CASE("a group that is well grows: old ranks with their communicator, new ones with the id") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  Parent parent;
  const auto id = parent.session.GrowId(0);
  REQUIRE_OK(id);
  Rank next;
  REQUIRE_OK(next.session.GrowCommunicator(parent.session, 0, 4, &*id, Soon()));
  Rank other;
  Parent others_parent;
  REQUIRE_OK(other.session.GrowCommunicator(others_parent.session, 0, 4, nullptr, Soon()));
  Rank fresh;
  const auto joined = fresh.session.JoinCommunicator("dp", 4, 3, *id, Soon());
  REQUIRE_OK(joined);
  CHECK(*joined == 0);
  CHECK(CallsSince(nccl) == Calls{"grow id 1", "grow to 4 as -1 with id: 1", "grow 3", "init 4",
                                  "init 5", "grow to 4 as -1: 4", "grow 6",
                                  "grow to 4 as 3 with id non-blocking: 0", "grow 7"});
}

TEST_CASE("a grow that fails ends the parent, well as it was") {
  PlayedNccl& nccl = PlayedNccl::Reset();
  nccl.SetEndOf("grow", ncclRemoteError);
  Rank next;
  Parent parent;
  CHECK_STATUS(next.session.GrowCommunicator(parent.session, 0, 4, nullptr, Soon()),
               absl::StatusCode::kUnavailable, "dp communicator: ");
  CHECK_STATUS(parent.session.status(), absl::StatusCode::kUnavailable, "dp communicator: ");
  CHECK(CallsSince(nccl) ==
        Calls{"grow to 4 as -1: 1", "grow 3", "grouped abort 2", "grouped abort 1"});
}

TEST_CASE("a library that cannot says so by its version") {
  PlayedNccl::Reset();
  const NcclLibrary old = {.features = NcclFeaturesOf(21903)};
  Rank next(old);
  Parent parent(old);
  CHECK_STATUS(next.session.ShrinkCommunicator(parent.session, 0, {2}, Soon()),
               absl::StatusCode::kUnimplemented, "NCCL 2.19.3 cannot shrink");
  CHECK_STATUS(next.session.JoinCommunicator("dp", 4, 3, {}, Soon()),
               absl::StatusCode::kUnimplemented, "NCCL 2.19.3 cannot grow");
  CHECK_STATUS(parent.session.GrowId(0), absl::StatusCode::kUnimplemented, "cannot grow");
}

}  // namespace
}  // namespace convene::worker
