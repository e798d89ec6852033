#include "tools/base/source_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene {

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& ip6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&ip6);
    inet_ntop(is_mapped ? AF_INET : AF_INET6, &ip6.s6_addr[is_mapped ? 12 : 0], text, sizeof(text));
  }
  return text;
}

absl::StatusOr<std::vector<std::string>> OwnAddresses(bool with_link_local) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return ErrnoStatus(errno, "getifaddrs");
  std::vector<std::string> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
      if (item->ifa_addr == nullptr || item->ifa_addr->sa_family != family) continue;
      if ((item->ifa_flags & IFF_UP) == 0) continue;
      if (!with_link_local && family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(item->ifa_addr)->sin6_addr)) {
        continue;
      }
      addresses.push_back(AddressText(item->ifa_addr));
    }
  }
  freeifaddrs(list);
  return addresses;
}

int PortOf(const sockaddr* address) {
  return ntohs(address->sa_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(address)->sin_port);
}

absl::StatusOr<std::string> SourceTowards(const sockaddr* target, socklen_t length) {
  // Connecting a datagram socket chooses a route and a source address.
  const UniqueFd fd(socket(target->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  sockaddr_storage own = {};
  socklen_t own_length = sizeof(own);
  auto* const generic = reinterpret_cast<sockaddr*>(&own);
  if (connect(fd.get(), target, length) != 0 || getsockname(fd.get(), generic, &own_length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no route to ", AddressText(target), ": ", strerror(errno)));
  }
  return AddressText(generic);
}

}  // namespace convene
