// The numeric addresses by which other machines see this one.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene {

// Without the port: "10.0.0.7", "fd00::7"; an IPv4 address inside IPv6 as itself. "" for an address
// of another family.
std::string AddressText(const sockaddr* address);

// The numeric addresses of this machine's interfaces that are up, loopback's too, IPv4 first.
// ErrnoStatus's errors.
absl::StatusOr<std::vector<std::string>> OwnAddresses(bool with_link_local);

// The port of an IPv4 or IPv6 address.
int PortOf(const sockaddr* address);

// The address from which packets to `target` would leave: where `target` lives, this machine is
// found there. Sends nothing. Unavailable when there is no route; the text names `target`.
absl::StatusOr<std::string> SourceTowards(const sockaddr* target, socklen_t length);

}  // namespace convene
