#include "launcher/local_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/net/resolve.h"
#include "spdlog/spdlog.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/random.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

using rendezvous::ResolvedAddress;

constexpr int kAnyPort = 9;  // connecting a datagram socket sends nothing

bool IsLoopback(const ResolvedAddress& address) {
  const std::string text = AddressText(address.get());
  return absl::StartsWith(text, "127.") || text == "::1";
}

// The addresses of this machine's interfaces that are up, IPv4 first, without link-local ones.
absl::StatusOr<std::vector<ResolvedAddress>> OwnAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return ErrnoStatus(errno, "getifaddrs");
  std::vector<ResolvedAddress> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* item = list; item != nullptr; item = item->ifa_next) {
      if (item->ifa_addr == nullptr || item->ifa_addr->sa_family != family) continue;
      if ((item->ifa_flags & IFF_UP) == 0) continue;
      ResolvedAddress address;
      address.family = family;
      address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::memcpy(&address.storage, item->ifa_addr, address.length);
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6&>(address.storage).sin6_addr)) {
        continue;
      }
      addresses.push_back(address);
    }
  }
  freeifaddrs(list);
  return addresses;
}

absl::StatusOr<std::vector<ResolvedAddress>> ResolvePatiently(const std::string& host,
                                                              absl::Duration timeout) {
  Clock& clock = Clock::Real();
  const MonotonicTime deadline = clock.Now() + timeout;
  Backoff backoff(absl::Milliseconds(100), absl::Seconds(2));
  bool told = false;
  for (;;) {
    auto addresses = rendezvous::ResolveHost(host, kAnyPort, deadline - clock.Now());
    const absl::Duration pause = backoff.Next(RandomFraction());
    if (addresses.ok() || clock.Now() + pause >= deadline) return addresses;
    if (!std::exchange(told, true)) {
      spdlog::warn("{}; trying again for {}", std::string(addresses.status().message()),
                   absl::FormatDuration(timeout));
    }
    clock.SleepFor(pause);
  }
}

bool IsAmong(const ResolvedAddress& address, const std::vector<ResolvedAddress>& own) {
  for (const ResolvedAddress& one : own) {
    if (AddressText(one.get()) == AddressText(address.get())) return true;
  }
  return false;
}

// The address for a host name that means loopback on this machine only.
std::string FirstOtherThanLoopback(const std::vector<ResolvedAddress>& own) {
  for (const ResolvedAddress& one : own) {
    if (!IsLoopback(one)) return AddressText(one.get());
  }
  return "127.0.0.1";
}

}  // namespace

absl::Status CheckLoopback() {
  sockaddr_in loopback = {};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(kAnyPort);
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const absl::Status reached =
      SourceTowards(reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback)).status();
  if (reached.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "this machine (or container, or network namespace) cannot reach itself: ",
      std::string(reached.message()),
      ". Its loopback interface is down or has no 127.0.0.1; bring it up: `ip link set lo up`"));
}

absl::StatusOr<Location> LocateRendezvous(const std::string& host, absl::Duration timeout) {
  if (host == "localhost") return Location{true, "127.0.0.1"};
  CONVENE_ASSIGN_OR_RETURN(const std::vector<ResolvedAddress> addresses,
                           ResolvePatiently(host, timeout));
  const ResolvedAddress& first = addresses.front();
  if (IsLoopback(first) && AddressText(first.get()) == host) return Location{true, host};
  CONVENE_ASSIGN_OR_RETURN(const std::vector<ResolvedAddress> own, OwnAddresses());
  Location location;
  for (const ResolvedAddress& address : addresses) {
    location.is_here |= IsLoopback(address) || IsAmong(address, own);
  }
  if (IsLoopback(first)) {
    location.own_address = FirstOtherThanLoopback(own);
    return location;
  }
  CONVENE_ASSIGN_OR_RETURN(location.own_address, SourceTowards(first.get(), first.length));
  return location;
}

}  // namespace convene::launcher
