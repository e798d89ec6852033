// Lends a test's own store to code that opens clients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/comm/nccl/peers.h"

namespace convene::worker::testing {

// A client of a store that outlives it.
class BorrowedStore final : public rendezvous::StoreClient {
 public:
  explicit BorrowedStore(rendezvous::StoreClient& store) : store_(store) {}
  absl::Status Set(const std::string& key, const std::string& value) override {
    return store_.Set(key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    return store_.Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    return store_.Add(key, delta);
  }
  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    return store_.Wait(keys, timeout);
  }

 private:
  rendezvous::StoreClient& store_;
};

// Opens `store` as often as asked.
inline OpenStore OpeningOf(rendezvous::StoreClient& store) {
  return [&store](absl::Duration) -> absl::StatusOr<std::unique_ptr<rendezvous::StoreClient>> {
    return std::make_unique<BorrowedStore>(store);
  };
}

}  // namespace convene::worker::testing
