#include "rendezvous/net/listen.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>

#include "absl/strings/str_cat.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/host_port.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// A local name is known at once.
constexpr absl::Duration kResolvePatience = absl::Seconds(10);

absl::StatusOr<int> BoundPort(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, generic, &length) != 0) {
    return ErrnoStatus(errno, "cannot read the address of the rendezvous port");
  }
  return PortOf(generic);
}

// `what` begins the text of an error.
absl::StatusOr<Listener> Bind(const ResolvedAddress& address, bool both_families, bool listens,
                              const std::string& what) {
  Listener listener;
  listener.fd.Reset(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int fd = listener.fd.get();
  if (fd < 0) return ErrnoStatus(errno, what);
  const int on = 1;
  const int off = 0;
  // Allows to bind over connections in TIME_WAIT, but not over another listener: that would take
  // SO_REUSEPORT.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (both_families) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd, address.get(), address.length) != 0) {
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
  const auto addresses = ResolveHost(host, kResolvePatience, port);
  CONVENE_RETURN_IF_ERROR(Annotate(addresses.status(), absl::StrCat(kCannotListen, host)));
  const ResolvedAddress& address = addresses->front();
  const std::string text = AddressText(address.get());
  const std::string what = absl::StrCat(kCannotListen, FormatHostPort(text, port));
  if (text != "0.0.0.0" && text != "::") return Bind(address, false, listens, what);
  CONVENE_ASSIGN_OR_RETURN(const auto any, ResolveHost("::", kResolvePatience, port));
  absl::StatusOr<Listener> both = Bind(any.front(), true, listens, what);
  // A machine without IPv6 has no such sockets, or no such address.
  const bool has_no_ipv6 =
      absl::IsInvalidArgument(both.status()) || both.status().code() == absl::StatusCode::kUnknown;
  if (both.ok() || address.family() == AF_INET6 || !has_no_ipv6) return both;
  return Bind(address, false, listens, what);
}

}  // namespace

std::string AddressToBind(const std::string& told_host) {
  if (told_host == "localhost") return "127.0.0.1";
  in_addr v4;
  in6_addr v6;
  const bool is_loopback =
      (inet_pton(AF_INET, told_host.c_str(), &v4) == 1 &&
       (ntohl(v4.s_addr) >> 24) == IN_LOOPBACKNET) ||
      (inet_pton(AF_INET6, told_host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
  return is_loopback ? told_host : kAllAddresses;
}

absl::StatusOr<Listener> ListenOn(const std::string& host, int port) {
  return Open(host, port, true);
}

absl::StatusOr<Listener> ReserveOn(const std::string& host, int port) {
  return Open(host, port, false);
}

}  // namespace convene::rendezvous
