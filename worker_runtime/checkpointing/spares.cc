#include "worker_runtime/checkpointing/spares.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/checkpointing/job_store.h"

namespace convene::worker {
namespace {

// The wait of one question to the store; a stop is heard at most so late.
constexpr absl::Duration kPatience = absl::Milliseconds(250);
constexpr absl::Duration kReadBackTimeout = absl::Seconds(10);
// Connections to the store that a spare makes, one after the other, before it gives up.
constexpr int kSpareConnections = 5;
constexpr char kAllStepsDone[] = "all steps are done";

std::string EndKey(const std::string& key_prefix) { return absl::StrCat(key_prefix, "/end"); }
std::string StopKey(const std::string& key_prefix) { return absl::StrCat(key_prefix, "/stop"); }

}  // namespace

Contract WithoutSpares(const Contract& contract, const Layout& layout) {
  Contract training = contract;
  training.world_size = layout.world_size();
  const int first_rank_here = contract.rank - contract.local_rank;
  training.local_world_size =
      std::min(contract.local_world_size, layout.world_size() - first_rank_here);
  return training;
}

absl::Status TellSpares(rendezvous::StoreClient& store, const std::string& key_prefix,
                        bool all_steps_done) {
  const std::string key = EndKey(key_prefix);
  CONVENE_RETURN_IF_ERROR(store.Set(key, all_steps_done ? kAllStepsDone : "stopped"));
  return store.Get(key, kReadBackTimeout).status();  // The store does not acknowledge a Set.
}

absl::StatusOr<bool> WaitAsSpare(rendezvous::StoreClient& store, const std::string& key_prefix,
                                 const StopToken& stop) {
  bool has_passed_on = false;
  for (;;) {
    if (!has_passed_on && stop.reason() != StopReason::kNone) {
      CONVENE_RETURN_IF_ERROR(store.Set(StopKey(key_prefix), "1"));
      has_passed_on = true;
    }
    const absl::StatusOr<std::string> end = store.Get(EndKey(key_prefix), kPatience);
    if (absl::IsDeadlineExceeded(end.status())) continue;
    if (!end.ok()) return end.status();
    return *end == kAllStepsDone;
  }
}

absl::StatusOr<bool> RunAsSpare(const Contract& contract, const Layout& layout, StopToken& stop) {
  spdlog::info(
      "rank {} is a spare: it waits without training, because the layout {} needs {} of {} "
      "ranks",
      contract.rank, layout.ToString(), layout.world_size(), contract.world_size);
  stop.Watch();
  absl::StatusOr<bool> all_steps_done;
  for (int tries = 0; tries < kSpareConnections; ++tries) {
    CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<rendezvous::StoreClient> store,
                             OpenJobStore(contract));
    all_steps_done = WaitAsSpare(*store, KeyPrefix(contract), stop);
    // A connection that broke costs a spare nothing while the store is there.
    if (!absl::IsUnavailable(all_steps_done.status())) break;
  }
  return all_steps_done;
}

void EndSpares(const Contract& contract, bool all_steps_done) {
  const auto store = OpenJobStore(contract);
  const absl::Status told =
      store.ok() ? TellSpares(**store, KeyPrefix(contract), all_steps_done) : store.status();
  if (!told.ok())
    spdlog::warn("the spare ranks could not be told that the training has ended: {}",
                 told.ToString());
}

absl::StatusOr<std::unique_ptr<SpareWishes>> SpareWishes::Listen(
    std::shared_ptr<rendezvous::StoreClient> store, const std::string& key_prefix) {
  std::unique_ptr<SpareWishes> wishes(new SpareWishes());
  CONVENE_ASSIGN_OR_RETURN(
      wishes->thread_, Thread::Start("spares", [self = wishes.get(), store = std::move(store),
                                                key = StopKey(key_prefix)] {
        absl::Status asked = absl::DeadlineExceededError("");
        while (!self->is_over_ && absl::IsDeadlineExceeded(asked)) {
          asked = store->Get(key, kPatience).status();
        }
        if (asked.ok()) {
          self->stop_wanted_ = true;
        } else if (!absl::IsDeadlineExceeded(asked)) {
          spdlog::warn("rank 0 cannot hear when a spare rank asks for a stop: {}",
                       asked.ToString());
        }
      }));
  return wishes;
}

SpareWishes::~SpareWishes() {
  is_over_ = true;
  thread_.Join();
}

}  // namespace convene::worker
