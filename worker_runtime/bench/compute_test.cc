#include "worker_runtime/bench/compute.h"

#include <set>
#include <tuple>

#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/test_worlds.h"

namespace convene::worker {
namespace {

TEST_CASE("all ranks have the same times of the same arithmetic") {
  constexpr int kRanks = 2;
  std::vector<CommunicatorSet> sets =
      testing::MakeSets(testing::Transport::kLoopback, {.dp = kRanks});
  std::vector<absl::StatusOr<std::vector<ComputeRow>>> times(kRanks);
  std::vector<Thread> threads;
  BenchFlags flags;
  flags.iterations = 1;
  flags.warmup_iterations = 1;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back("rank", [&, rank] {
      const auto device = Device::Cpu();
      times[rank] = TimeCompute(flags, sets[rank], *device, Clock::Real());
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const auto& of_rank : times) REQUIRE_OK(of_rank);
  CHECK(*times[0] == *times[1]);
  std::set<std::tuple<std::string, DType>> kinds;
  for (const ComputeRow& row : *times[0]) {
    INFO(row.operation << " " << row.rows << " x " << row.width);
    kinds.emplace(row.operation, row.dtype);
    CHECK(row.seconds > 0);
    CHECK(row.bytes > 0);
    CHECK((row.flops == 0) == (row.operation == kPass));
    // A multiply-add is two FLOPs, and a layer has three products.
    const auto size = static_cast<double>(row.rows * row.width);
    if (row.operation == kProduct) {
      CHECK(row.flops == 6 * size * static_cast<double>(row.width));
    }
  }
  CHECK(kinds.size() == 6);
}

}  // namespace
}  // namespace convene::worker
