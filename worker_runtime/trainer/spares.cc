#include "worker_runtime/trainer/spares.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace convene::worker {
namespace {

// Between two questions to the store; the answer comes at once when it is there.
constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr char kAllStepsDone[] = "all steps are done";

std::string EndKey(const std::string& key_prefix) { return absl::StrCat(key_prefix, "/end"); }

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
  return store.Set(EndKey(key_prefix), all_steps_done ? kAllStepsDone : "stopped");
}

absl::StatusOr<bool> WaitAsSpare(rendezvous::StoreClient& store, const std::string& key_prefix) {
  absl::StatusOr<std::string> end;
  do {
    end = store.Get(EndKey(key_prefix), kPatience);
  } while (absl::IsDeadlineExceeded(end.status()));
  if (!end.ok()) return end.status();
  return *end == kAllStepsDone;
}

}  // namespace convene::worker
