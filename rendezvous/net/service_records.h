// DNS's SRV records: a name for a list of daemons.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/host_port.h"

namespace convene::rendezvous {

// A service's name begins with an underscore: "srv:29400" is a port of a host.
inline constexpr absl::string_view kServicePrefix = "srv:_";
// More records than this are left out, the ones of the least importance first.
inline constexpr size_t kMostServiceRecords = 16;

// PURE.
bool IsService(absl::string_view endpoint);

// PURE. The hosts and ports in a DNS server's answer `message` to a question for SRV records:
// those of the smallest priority first, of these the heaviest. InvalidArgument when it is no such
// answer, NotFound when no record is in it.
absl::StatusOr<std::vector<HostPort>> ParseServiceAnswer(absl::string_view message);

// `endpoint` as it is, or of "srv:_convene._tcp.example.org" the list "a:29400,b:29400" that DNS
// has under this name now. Asks the servers of /etc/resolv.conf, at most some 10 s; a name of
// /etc/hosts has no SRV records. InvalidArgument when the name does not exist, has no such records
// or an answer makes no sense; Unavailable when no server answers. The text says `endpoint`.
absl::StatusOr<std::string> ResolveService(const std::string& endpoint);

}  // namespace convene::rendezvous
