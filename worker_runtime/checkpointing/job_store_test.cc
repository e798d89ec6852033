#include "worker_runtime/checkpointing/job_store.h"

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/manual_clock.h"
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

// A store in which other ranks do something whenever this one waits.
class BusyStore final : public rendezvous::StoreClient {
 public:
  BusyStore(rendezvous::StoreClient& store, std::function<void(absl::Duration waited)> others)
      : store_(store), others_(std::move(others)) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    if (timeout > absl::ZeroDuration()) others_(timeout);
    return store_.Get(key, absl::ZeroDuration());
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    return store_.Add(key, delta);
  }
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return store_.Wait(keys, timeout);
  }

 private:
  rendezvous::StoreClient& store_;
  const std::function<void(absl::Duration waited)> others_;
};

TEST_CASE("data of other nodes are waited for as long as these come further") {
  testing::MemoryStore memory;
  ManualClock clock;
  const DataWait quiet = {.clock = &clock, .heard = [](int64_t, const std::string&) {}};
  BusyStore store(memory, [&](absl::Duration waited) {
    clock.Advance(waited);
    const int64_t hour = absl::ToInt64Hours(clock.Now().since_epoch());
    if (hour < 9) {
      REQUIRE_OK(TellOfData(memory, "p", absl::StrCat(hour * 10, "% on b")));
    } else {
      REQUIRE_OK(WaitForData(memory, "p", 2, quiet));
    }
  });
  std::vector<std::string> heard;
  DataWait wait = quiet;
  wait.silence_max = absl::Minutes(61);
  wait.heard = [&](int64_t ready, const std::string& news) {
    heard.push_back(absl::StrCat(ready, " ", news));
  };
  REQUIRE_OK(WaitForData(store, "p", 2, wait));
  CHECK(clock.Now().since_epoch() >= absl::Hours(9));
  REQUIRE(heard.size() == 9);
  CHECK(heard[0] == "1 0% on b");
  CHECK(heard[8] == "1 80% on b");
}

TEST_CASE("data of nodes that come no further are not waited for") {
  testing::MemoryStore memory;
  ManualClock clock;
  BusyStore store(memory, [&](absl::Duration waited) { clock.Advance(waited); });
  REQUIRE_OK(TellOfData(store, "p", "31.4% on b"));
  CHECK_STATUS(
      WaitForData(store, "p", 2, {.clock = &clock, .heard = [](int64_t, const std::string&) {}}),
      absl::StatusCode::kDeadlineExceeded,
      "1 of 2 ranks have their data, and the others came no further within 30m (the last "
      "word: 31.4% on b)");
  CHECK(clock.Now().since_epoch() == absl::Minutes(30) + absl::Seconds(30));
}

TEST_CASE("a rank that does not come is waited for until the deadline") {
  testing::MemoryStore store;
  CHECK_STATUS(AgreeOnDevices(store, "p", 2, "a", true, absl::Milliseconds(1)),
               absl::StatusCode::kDeadlineExceeded, "waiting for the devices of all ranks");
}

}  // namespace
}  // namespace convene::worker
