// The other end's address as gRPC tells it, also of a connection that comes out of TLS.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// Gives an end of a socket pair a name, so that gRPC finds `host` at the other end. Without the
// name (the kernel has no memory) it finds none.
void NamePlainEnd(int fd, const std::string& host);

// PURE. The numeric address in gRPC's text about a peer, of a plain connection or of one whose
// other end has a name as above; "": there is none.
std::string HostOfPeer(absl::string_view peer);

// PURE. Whether a numeric address is reached on its own machine alone.
bool IsLoopback(absl::string_view address);

}  // namespace convene::rendezvous
