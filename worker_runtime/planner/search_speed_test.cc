// 100,000 layouts take at most a second of a processor.
#include <ctime>

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/planner/search.h"

namespace convene::worker {
namespace {

TEST_CASE("100,000 layouts are timed in a second") {
  Cluster cluster = {.gpu = *FindGpu("h100"), .gpus = 256};
  cluster.network = *FindNetwork("ndr400");
  const PlanJob job = {.model = *NamedModel("qwen3-235b-a22b"), .global_batch_size = 2048};
  const std::clock_t begin = std::clock();
  const auto plans = Search(job, cluster);
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  REQUIRE_OK(plans);
  CHECK(plans->tried > 100'000);
  CHECK(seconds / static_cast<double>(plans->tried) * 1e5 < 1);
}

}  // namespace
}  // namespace convene::worker
