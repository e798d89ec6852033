#include "rendezvous/net/listen.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  std::string text;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<Address> Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat(kCannotListen, host, ": ", gai_strerror(error)));
  }
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  char name[NI_MAXHOST];
  getnameinfo(found->ai_addr, found->ai_addrlen, name, sizeof(name), nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  address.text = FormatHostPort(name, port);
  return address;
}

bool IsAnyAddress(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr == INADDR_ANY;
  }
  const auto& ip6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return IN6_IS_ADDR_UNSPECIFIED(&ip6.sin6_addr);
}

absl::StatusOr<int> BoundPort(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus(errno, "cannot read the address of the rendezvous port");
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

absl::StatusOr<Listener> Bind(const Address& address, bool both_families, bool listens) {
  const std::string what = absl::StrCat(kCannotListen, address.text);
  Listener listener;
  listener.fd.Reset(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = listener.fd.get();
  if (fd < 0) return ErrnoStatus(errno, what);
  const int on = 1;
  const int off = 0;
  // Allows to bind over connections in TIME_WAIT, but not over another listener: that would take
  // SO_REUSEPORT.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (both_families) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd, address.raw(), address.length) != 0) {
    if (errno == EADDRNOTAVAIL) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": it is no address of this machine"));
    }
    return ErrnoStatus(errno, what);
  }
  // The kernel cuts the backlog to net.core.somaxconn.
  if (listens && listen(fd, INT_MAX) != 0) return ErrnoStatus(errno, what);
  CONVENE_ASSIGN_OR_RETURN(listener.port, BoundPort(fd));
  return listener;
}

absl::StatusOr<Listener> Open(const std::string& host, int port, bool listens) {
  CONVENE_ASSIGN_OR_RETURN(const Address address, Resolve(host, port));
  if (!IsAnyAddress(address)) return Bind(address, false, listens);
  Address any = address;
  any.storage = {};
  auto& ip6 = reinterpret_cast<sockaddr_in6&>(any.storage);
  ip6.sin6_family = AF_INET6;
  ip6.sin6_port = htons(static_cast<uint16_t>(port));
  any.length = sizeof(sockaddr_in6);
  absl::StatusOr<Listener> both = Bind(any, true, listens);
  // A machine without IPv6 has no such sockets, or no such address.
  const bool has_no_ipv6 =
      absl::IsInvalidArgument(both.status()) || both.status().code() == absl::StatusCode::kUnknown;
  if (both.ok() || address.storage.ss_family == AF_INET6 || !has_no_ipv6) return both;
  return Bind(address, false, listens);
}

}  // namespace

std::string AddressToBind(const std::string& told_host) {
  if (told_host == "localhost") return "127.0.0.1";
  in_addr address;
  const bool is_loopback = inet_pton(AF_INET, told_host.c_str(), &address) == 1 &&
                           (ntohl(address.s_addr) >> 24) == IN_LOOPBACKNET;
  return is_loopback ? told_host : "0.0.0.0";
}

absl::StatusOr<Listener> ListenOn(const std::string& host, int port) {
  return Open(host, port, true);
}

absl::StatusOr<Listener> ReserveOn(const std::string& host, int port) {
  return Open(host, port, false);
}

}  // namespace convene::rendezvous
