// A connection that was accepted.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace convene::rendezvous {

// Makes it non-blocking, sending at once, and one that notices a dead peer.
absl::Status PrepareConnection(int fd);

// "[::1]:4711" (its other end), for logs.
std::string PeerName(int fd);

}  // namespace convene::rendezvous
