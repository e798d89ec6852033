// A TCP port of this machine, to listen on or to keep for another program.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

struct Listener {
  UniqueFd fd;  // non-blocking, closed on exec
  int port = 0;
};

// The beginning of each message of the statuses below.
inline constexpr char kCannotListen[] = "cannot listen on ";

inline constexpr char kAllAddresses[] = "0.0.0.0";

// PURE. The address to bind for a port that others are told as `told_host`:port: that address when
// it is a loopback one, of IPv4 or IPv6, since the port is then for this machine alone; else
// kAllAddresses.
std::string AddressToBind(const std::string& told_host);

// Binds `host` and listens; port 0 is any free one. 0.0.0.0 and :: are each all addresses, of IPv6
// (where there is any) and IPv4. AlreadyExists when the port is taken, InvalidArgument for an
// address that is not this machine's, PermissionDenied for a port of the system's, ResolveHost's
// errors for a name.
absl::StatusOr<Listener> ListenOn(const std::string& host, int port);

// The same without listening: as long as the descriptor is open the kernel gives the port to no
// other program, but a program that asks for it by its number (and sets SO_REUSEADDR, as PyTorch's
// store does) gets it.
absl::StatusOr<Listener> ReserveOn(const std::string& host, int port);

}  // namespace convene::rendezvous
