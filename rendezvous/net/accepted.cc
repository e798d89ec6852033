#include "rendezvous/net/accepted.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// These options only make connections faster and cleaner, so a kernel that refuses one is no error.
void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

}  // namespace

absl::Status PrepareConnection(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "cannot make a connection non-blocking");
  }
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  return absl::OkStatus();
}

std::string PeerName(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "a client";
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6) {
    const auto& ip6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ip6.sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(ip6.sin6_port));
  }
  const auto& ip4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &ip4.sin_addr, text, sizeof(text));
  return absl::StrCat(text, ":", ntohs(ip4.sin_port));
}

}  // namespace convene::rendezvous
