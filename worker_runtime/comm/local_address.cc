#include "worker_runtime/comm/local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/source_address.h"

namespace convene::worker {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

}  // namespace

absl::StatusOr<std::string> LocalAddressToward(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // A datagram connect needs a port; any number will do.
  const int error = getaddrinfo(host.c_str(), "9", &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot resolve \"", host, "\": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, FreeAddresses> owned(found);
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    absl::StatusOr<std::string> address = SourceTowards(candidate->ai_addr, candidate->ai_addrlen);
    if (address.ok()) return address;
  }
  return absl::UnavailableError(absl::StrCat(
      "no route to \"", host, "\": state the address that other workers can reach this node at"));
}

}  // namespace convene::worker
