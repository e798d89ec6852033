// A client of the job's key-value store, speaking the c10d TCPStore wire (PyTorch's TCPStore.cpp;
// see README.md of this folder).
//
// Any TCPStore server will do: the agent's own, `convened`, or PyTorch's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace convene::rendezvous {

// Blocking; one request at a time. Not thread-safe: one client per thread.
//
// Errors: Unavailable when the server cannot be reached or closed the connection (the text names
// host and port); DeadlineExceeded when a key did not appear in time (the text names the key,
// capped); InvalidArgument for an unresolvable host.
class StoreClient {
 public:
  // Tries again with back-off until `timeout`. Every key is sent with PyTorch's "/" before it.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Connect(const std::string& host, int port,
                                                              absl::Duration timeout);
  virtual ~StoreClient() = default;

  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;
  // Waits for the key, then returns its value.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
  // Returns the counter after adding; an absent key counts as 0.
  virtual absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) = 0;
  // Returns once all keys exist.
  virtual absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) = 0;
};

// Returns once all `world_size` ranks have called it with this key, which counts them; then the key
// `key` + "/all" is there. DeadlineExceeded, beginning with `what`, when a rank did not within
// `timeout`; the store's errors.
absl::Status WaitForAll(StoreClient& store, const std::string& key, int world_size,
                        absl::Duration timeout, const char* what);

}  // namespace convene::rendezvous
