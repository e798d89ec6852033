#include "worker_runtime/comm/nccl/recovery.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

constexpr int kVersions[] = {21805, 21903, 22703, 22803, 22808, 22809, 22902, 23000};

std::vector<NcclRecovery> OverVersions(const NcclChange& change) {
  std::vector<NcclRecovery> all;
  for (const int version : kVersions) {
    all.push_back(DecideNcclRecovery(NcclFeaturesOf(version), change).recovery);
  }
  return all;
}

std::string WhyOf(int version, const NcclChange& change) {
  return DecideNcclRecovery(NcclFeaturesOf(version), change).why;
}

constexpr NcclRecovery kProcess = NcclRecovery::kNewProcess;
constexpr NcclRecovery kNew = NcclRecovery::kNewCommunicators;
constexpr NcclRecovery kShrink = NcclRecovery::kShrink;
constexpr NcclRecovery kGrow = NcclRecovery::kGrow;
using Recoveries = std::vector<NcclRecovery>;

TEST_CASE("after a failure a group shrinks where NCCL can revoke, else it is made anew") {
  const NcclChange change = {.size = 3, .lost = {2}, .health = NcclHealth::kEnded};
  // 2.18, 2.19, 2.27, 2.28.3, 2.28.8, 2.28.9, 2.29, 2.30
  CHECK(OverVersions(change) ==
        Recoveries{kProcess, kNew, kNew, kProcess, kProcess, kShrink, kShrink, kShrink});
  CHECK(WhyOf(21805, change) == "NCCL 2.18.5 is too old for non-blocking communicators");
  CHECK(WhyOf(21903, change) == "NCCL 2.19.3 cannot shrink");
  CHECK(WhyOf(22703, change) == "NCCL 2.27.3 can shrink, but not revoke what still runs");
  CHECK(WhyOf(22803, change) == "NCCL 2.28.3 does not restart well within a process");
  CHECK(WhyOf(22809, change) ==
        "NCCL 2.28.9 can revoke and shrink: 2 of 3 ranks go on without rank 2");
}

TEST_CASE("ranks that leave while all is well need no revoke") {
  const NcclChange change = {.size = 4, .lost = {0, 3}};
  CHECK(OverVersions(change) ==
        Recoveries{kProcess, kNew, kShrink, kProcess, kProcess, kShrink, kShrink, kShrink});
  CHECK(WhyOf(22703, change) == "NCCL 2.27.3 can shrink: 2 of 4 ranks go on without ranks 0, 3");
}

TEST_CASE("new ranks join a group that is well where NCCL can grow one") {
  const NcclChange change = {.size = 2, .joined = {2, 3}};
  CHECK(OverVersions(change) ==
        Recoveries{kProcess, kNew, kNew, kProcess, kProcess, kNew, kGrow, kGrow});
  CHECK(WhyOf(22809, change) == "NCCL 2.28.9 cannot grow");
  CHECK(WhyOf(22902, change) == "NCCL 2.29.2 can grow: 2 ranks become 4");
}

TEST_CASE("what would take two steps takes one with new communicators") {
  const NcclChange exchange = {.size = 2, .lost = {1}, .joined = {1}, .health = NcclHealth::kEnded};
  CHECK(OverVersions(exchange) ==
        Recoveries{kProcess, kNew, kNew, kProcess, kProcess, kNew, kNew, kNew});
  CHECK(WhyOf(23000, exchange) == "rank 1 lost and rank 1 new: one step instead of two");
  const NcclChange ended = {.size = 2, .joined = {2}, .health = NcclHealth::kEnded};
  CHECK(OverVersions(ended) ==
        Recoveries{kProcess, kNew, kNew, kProcess, kProcess, kNew, kNew, kNew});
}

TEST_CASE("after a deadline that nobody died of, the same ranks make new communicators") {
  const NcclChange change = {.size = 2, .health = NcclHealth::kEnded};
  CHECK(OverVersions(change) ==
        Recoveries{kProcess, kNew, kNew, kProcess, kProcess, kNew, kNew, kNew});
}

TEST_CASE("a lost context needs a new process, whatever the version") {
  const NcclChange change = {.size = 3, .lost = {2}, .health = NcclHealth::kContextLost};
  CHECK(OverVersions(change) == Recoveries(8, kProcess));
  CHECK(WhyOf(23000, change) == "the GPU's context is lost: only a new process gets another");
}

TEST_CASE("without a change nothing is done") {
  CHECK(OverVersions({.size = 3}) == Recoveries(8, NcclRecovery::kKeep));
}

TEST_CASE("a library without the symbol is as good as an older one") {
  NcclFeatures features = NcclFeaturesOf(22809);
  features.revoke = false;
  CHECK(DecideNcclRecovery(features, {.size = 3, .lost = {2}, .health = NcclHealth::kEnded})
            .recovery == kNew);
}

TEST_CASE("survivors keep their order and close up") {
  CHECK(Survivors({4, 5, 6, 7}, {0, 2}) == std::vector<int>{5, 7});
  CHECK(Survivors({4, 5}, {}) == std::vector<int>{4, 5});
}

}  // namespace
}  // namespace convene::worker
