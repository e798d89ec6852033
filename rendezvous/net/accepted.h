// Functions for accepted connections.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace convene::rendezvous {

// Makes the socket non-blocking, lets it send at once, and lets it notice a dead peer.
absl::Status PrepareConnection(int fd);

// "[::1]:4711": the connection's other end, for logs.
std::string PeerName(int fd);

}  // namespace convene::rendezvous
