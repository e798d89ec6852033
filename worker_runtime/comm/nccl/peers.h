// The messages through the job's store with which ranks tell each other that one of them failed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/comm/nccl/stall.h"

namespace convene::worker {

using OpenStore =
    std::function<absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>>(absl::Duration timeout)>;

// One thread. Bounded: Publish takes 2 s at most, Ask 3 s.
class NcclPeers {
 public:
  // Tells the other ranks this rank's last operations. Null when there is no store, or it does not
  // answer.
  static std::unique_ptr<NcclPeers> Publish(const OpenStore& open_store,
                                            const std::string& key_prefix, int global_rank,
                                            const std::vector<NcclProgress>& own);

  // The progress that the ranks have told, or tell within the time, by global rank.
  std::map<int, std::vector<NcclProgress>> Ask(const std::vector<int>& global_ranks);

 private:
  NcclPeers(std::unique_ptr<rendezvous::StoreClient> store, std::string key_prefix)
      : store_(std::move(store)), key_prefix_(std::move(key_prefix)) {}

  const std::unique_ptr<rendezvous::StoreClient> store_;
  const std::string key_prefix_;
};

}  // namespace convene::worker
