#include "worker_runtime/comm/local_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

// Connecting a datagram socket chooses a route and a source address, and sends nothing.
absl::StatusOr<std::string> SourceAddressFor(const addrinfo& target) {
  const UniqueFd socket_fd(socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage source = {};
  socklen_t length = sizeof(source);
  auto* const generic = reinterpret_cast<sockaddr*>(&source);
  char text[NI_MAXHOST];
  if (socket_fd.get() < 0 || connect(socket_fd.get(), target.ai_addr, target.ai_addrlen) != 0 ||
      getsockname(socket_fd.get(), generic, &length) != 0 ||
      getnameinfo(generic, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) {
    return ErrnoStatus(errno, "no route");
  }
  return std::string(text);
}

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
    absl::StatusOr<std::string> address = SourceAddressFor(*candidate);
    if (address.ok()) return address;
  }
  return absl::UnavailableError(absl::StrCat(
      "no route to \"", host, "\": state the address that other workers can reach this node at"));
}

}  // namespace convene::worker
