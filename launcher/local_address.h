// This machine's place in the network, as seen from the rendezvous.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/net/resolve.h"

namespace convene::launcher {

struct Location {
  std::string host;         // of several, the first one whose name is known
  bool is_here = false;     // the host is this machine
  std::string own_address;  // numeric: what other nodes that can reach the host reach us by
  std::string loopback;  // the host is this address here, which no other machine reaches; else ""
};

// One look-up of each of `hosts` until one is known, tried again with back-off while the name is
// not known, then local calls only: no packet is sent. "localhost" and numeric addresses need no
// look-up. A host that is a name of this machine's loopback (Debian's 127.0.1.1) counts as here;
// our own address is then that on the default route, else the first other one.
//
// `is_pod`: the host is a pod of Kubernetes, whose name comes when it is placed and goes when it
// moves. The log then tells now and then what is awaited, and a name that never comes is
// Unavailable with what to look at.
//
// InvalidArgument, Unavailable or DeadlineExceeded as ResolveHost says, after `timeout` at the
// latest; Unavailable when there is no route.
absl::StatusOr<Location> LocateRendezvous(const std::vector<std::string>& hosts,
                                          absl::Duration timeout, bool is_pod = false);

// Whether this machine has one of `addresses`, as far as it knows: behind a translation of
// addresses it does not.
bool HasOneOf(const std::vector<rendezvous::ResolvedAddress>& addresses);

// Unavailable when this machine cannot reach itself at 127.0.0.1, with what to do: a network
// namespace begins with its loopback interface down. No packet is sent.
absl::Status CheckLoopback();

}  // namespace convene::launcher
