// 100,000 layouts take at most a second.
#include <chrono>

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/planner/search.h"

namespace convene::worker {
namespace {

TEST_CASE("100,000 layouts are timed in a second") {
  Cluster cluster = {.gpu = *FindGpu("h100"), .gpus = 256};
  cluster.network = *FindNetwork("ndr400");
  const PlanJob job = {.model = *NamedModel("qwen3-235b-a22b"), .global_batch_size = 2048};
  const auto begin = std::chrono::steady_clock::now();
  const auto plans = Search(job, cluster);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  REQUIRE_OK(plans);
  CHECK(plans->tried > 100'000);
  CHECK(taken.count() / static_cast<double>(plans->tried) * 1e5 < 1);
}

}  // namespace
}  // namespace convene::worker
