#include "worker_runtime/checkpointing/spares.h"

#include <memory>

#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/memory_store.h"

namespace convene::worker {
namespace {

TEST_CASE("a spare ends when the training does, and knows whether all steps are done") {
  for (const bool all_steps_done : {true, false}) {
    testing::MemoryStore store;
    absl::StatusOr<bool> told;
    const StopToken stop;
    Thread spare("spare", [&] { told = WaitAsSpare(store, "epoch/3", stop); });
    REQUIRE_OK(TellSpares(store, "epoch/2", !all_steps_done));  // another attempt's
    REQUIRE_OK(TellSpares(store, "epoch/3", all_steps_done));
    spare.Join();
    REQUIRE_OK(told);
    CHECK(*told == all_steps_done);
  }
}

// A store that is asked twice before it is gone.
class LostStore final : public rendezvous::StoreClient {
 public:
  absl::Status Set(const std::string&, const std::string&) override { return Gone(); }
  absl::StatusOr<std::string> Get(const std::string&, absl::Duration) override {
    if (++questions == 1) return absl::DeadlineExceededError("no such key");
    return Gone();
  }
  absl::StatusOr<int64_t> Add(const std::string&, int64_t) override { return Gone(); }
  absl::Status Wait(const std::vector<std::string>&, absl::Duration) override { return Gone(); }
  int questions = 0;

 private:
  static absl::Status Gone() { return absl::UnavailableError("the store is gone"); }
};

TEST_CASE("a spare asks again and again, until the store is gone") {
  LostStore store;
  const StopToken stop;
  CHECK_STATUS(WaitAsSpare(store, "epoch/1", stop).status(), absl::StatusCode::kUnavailable,
               "gone");
  CHECK(store.questions == 2);
}

TEST_CASE("a spare that is asked to stop passes the wish on, and ends when the training has") {
  const auto shared = std::make_shared<testing::MemoryStore>();
  testing::MemoryStore& store = *shared;
  StopToken stop;
  stop.Watch();
  auto wishes = SpareWishes::Listen(shared, "epoch/1");
  REQUIRE_OK(wishes);
  CHECK_FALSE((*wishes)->stop_wanted());
  absl::StatusOr<bool> told;
  Thread spare("spare", [&] { told = WaitAsSpare(store, "epoch/1", stop); });
  stop.Request(StopReason::kTerminated, 15);
  REQUIRE_OK(store.Get("epoch/1/stop", absl::Seconds(30)));
  const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(30);
  while (!(*wishes)->stop_wanted()) REQUIRE(Clock::Real().Now() < deadline);
  REQUIRE_OK(TellSpares(store, "epoch/1", false));
  spare.Join();
  REQUIRE_OK(told);
  CHECK_FALSE(*told);
}

TEST_CASE("ranks that train see a job without its spares") {
  Contract contract;
  contract.world_size = 7;
  contract.local_world_size = 4;
  const Layout layout = {.dp = 3, .tp = 2};
  contract.rank = 2;
  contract.local_rank = 2;
  CHECK(WithoutSpares(contract, layout).world_size == 6);
  CHECK(WithoutSpares(contract, layout).local_world_size == 4);
  // The second node has ranks 4 to 6, of which 6 is the spare.
  contract.rank = 5;
  contract.local_rank = 1;
  contract.local_world_size = 3;
  CHECK(WithoutSpares(contract, layout).local_world_size == 2);
}

}  // namespace
}  // namespace convene::worker
