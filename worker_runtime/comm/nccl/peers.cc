#include "worker_runtime/comm/nccl/peers.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kPublishPatience = absl::Seconds(2);
constexpr absl::Duration kAskPatience = absl::Seconds(3);
// The time for one look at one key: long enough for an answer, short enough to reach the other keys
// in time.
constexpr absl::Duration kLook = absl::Milliseconds(20);

std::string KeyOf(const std::string& key_prefix, int global_rank) {
  return absl::StrCat(key_prefix, "/nccl/progress/", global_rank);
}

}  // namespace

std::unique_ptr<NcclPeers> NcclPeers::Publish(const OpenStore& open_store,
                                              const std::string& key_prefix, int global_rank,
                                              const std::vector<NcclProgress>& own) {
  if (open_store == nullptr) return nullptr;
  auto store = open_store(kPublishPatience);
  if (!store.ok() || *store == nullptr) return nullptr;
  if (!(*store)->Set(KeyOf(key_prefix, global_rank), SerializeProgress(own)).ok()) return nullptr;
  return std::unique_ptr<NcclPeers>(new NcclPeers(*std::move(store), key_prefix));
}

std::map<int, std::vector<NcclProgress>> NcclPeers::Ask(const std::vector<int>& global_ranks) {
  const MonotonicTime deadline = Clock::Real().Now() + kAskPatience;
  std::map<int, std::vector<NcclProgress>> told;
  std::vector<int> missing = global_ranks;
  while (!missing.empty()) {
    std::vector<int> still_missing;
    for (const int rank : missing) {
      if (Clock::Real().Now() >= deadline) return told;
      const auto text = store_->Get(KeyOf(key_prefix_, rank), kLook);
      if (text.ok()) {
        auto progress = ParseProgress(*text);
        if (progress.ok()) told[rank] = *std::move(progress);
      } else if (absl::IsDeadlineExceeded(text.status())) {
        still_missing.push_back(rank);
      } else {
        return told;  // the store is gone
      }
    }
    missing = std::move(still_missing);
  }
  return told;
}

}  // namespace convene::worker
