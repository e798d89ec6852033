#include "worker_runtime/trainer/job_store.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/memory_store.h"

namespace convene::worker {
namespace {

struct RankOf {
  std::string host;
  bool has_gpu = false;
};

// The answer to each rank of the job.
std::vector<absl::Status> Agree(const std::vector<RankOf>& ranks) {
  testing::MemoryStore store;
  std::vector<absl::Status> ends(ranks.size());
  {
    std::vector<Thread> threads;
    for (size_t i = 0; i < ranks.size(); ++i) {
      threads.emplace_back("rank", [&, i] {
        ends[i] = AgreeOnDevices(store, "epoch/1", static_cast<int>(ranks.size()), ranks[i].host,
                                 ranks[i].has_gpu, absl::Seconds(10));
      });
    }
    for (Thread& thread : threads) thread.Join();
  }
  return ends;
}

TEST_CASE("ranks that all have a GPU, or all none, go on") {
  for (const bool has_gpu : {true, false}) {
    for (const absl::Status& end : Agree({{"a", has_gpu}, {"a", has_gpu}, {"b", has_gpu}})) {
      CHECK_OK(end);
    }
  }
}

TEST_CASE("in a mixed job every rank learns which hosts have no GPU, and what to do") {
  for (const absl::Status& end :
       Agree({{"a", true}, {"b", false}, {"c", true}, {"b", false}, {"d", false}, {"a", true}})) {
    CHECK_STATUS(end, absl::StatusCode::kFailedPrecondition,
                 "3 of 6 ranks have no GPU to train on: b (2 ranks), d (1 rank). All ranks");
    CHECK_THAT(std::string(end.message()),
               Catch::Contains("nvidia-smi") && Catch::Contains("--device cpu"));
  }
}

TEST_CASE("a long list of ranks without a GPU is cut") {
  testing::MemoryStore store;
  for (int i = 1; i <= 99; ++i)
    REQUIRE_OK(store.Set(absl::StrCat("p/devices/without-gpu/", i), "h"));
  REQUIRE_OK(store.Add("p/devices/without-gpu", 99));
  REQUIRE_OK(store.Add("p/devices/told", 99));
  CHECK_STATUS(AgreeOnDevices(store, "p", 100, "a", true, absl::ZeroDuration()),
               absl::StatusCode::kFailedPrecondition,
               "99 of 100 ranks have no GPU to train on: h (64 ranks) and 35 ranks more. ");
}

TEST_CASE("every rank learns the least of all ranks' values") {
  testing::MemoryStore store;
  const std::vector<int64_t> values = {70, 50, int64_t{1} << 40};
  std::vector<absl::StatusOr<int64_t>> least(values.size());
  {
    std::vector<Thread> threads;
    for (size_t i = 0; i < values.size(); ++i) {
      threads.emplace_back("rank", [&, i] {
        least[i] = AgreeOnLeast(store, "epoch/1/memory", static_cast<int>(i), 3, values[i],
                                absl::Seconds(10));
      });
    }
    for (Thread& thread : threads) thread.Join();
  }
  for (const auto& one : least) {
    REQUIRE_OK(one);
    CHECK(*one == 50);
  }
  CHECK_STATUS(AgreeOnLeast(store, "epoch/2/memory", 0, 2, 1, absl::Milliseconds(1)).status(),
               absl::StatusCode::kDeadlineExceeded, "epoch/2/memory/1");
}

TEST_CASE("a rank that does not come is waited for until the deadline") {
  testing::MemoryStore store;
  CHECK_STATUS(AgreeOnDevices(store, "p", 2, "a", true, absl::Milliseconds(1)),
               absl::StatusCode::kDeadlineExceeded, "waiting for the devices of all ranks");
}

}  // namespace
}  // namespace convene::worker
