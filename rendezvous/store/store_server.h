// The job's key-value store, served over the c10d TCPStore wire.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace convene::rendezvous {

// Serves from the moment Start returns until it is destroyed (which closes every connection and
// joins its one thread, "store"). Thread-safe.
class StoreServer {
 public:
  struct Options {
    int port = 0;  // 0 = any free one
  };
  // Binds all addresses, IPv6 and IPv4. AlreadyExists when the port is taken (the text names it),
  // ResourceExhausted without descriptors.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(const Options& options);
  virtual ~StoreServer() = default;

  virtual int port() const = 0;
};

}  // namespace convene::rendezvous
