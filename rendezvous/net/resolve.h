// Host names to addresses, with a deadline.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace convene::rendezvous {

struct ResolvedAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// The stream addresses of `host` with `port` (any, where nothing is sent), in the order to try
// them; never empty. A numeric address is answered without a look-up. InvalidArgument when the host
// does not exist, Unavailable when the name service has no answer now, DeadlineExceeded when it had
// none within `timeout`; the text names the host.
absl::StatusOr<std::vector<ResolvedAddress>> ResolveHost(const std::string& host,
                                                         absl::Duration timeout, int port = 9);

// PURE. The same addresses, unchanged in turn 0; in later turns each one comes first once, however
// the name service mixes them. REQUIRES: !addresses.empty().
std::vector<ResolvedAddress> InTurn(std::vector<ResolvedAddress> addresses, int turn);

}  // namespace convene::rendezvous
