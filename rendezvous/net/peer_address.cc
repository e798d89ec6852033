#include "rendezvous/net/peer_address.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "tools/base/host_port.h"
#include "tools/base/random.h"

namespace convene::rendezvous {
namespace {

constexpr char kPrefix[] = "convene-tls/";

}  // namespace

// An abstract name: no file has it, and it goes with the socket. A stream socket with a name takes
// no connections unless it listens.
void NamePlainEnd(int fd, const std::string& host) {
  const std::string name = absl::StrCat(kPrefix, absl::Hex(RandomU64()), "/", host);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.data(), length, &address.sun_path[1]);
  (void)bind(fd, reinterpret_cast<sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length));
}

std::string HostOfPeer(absl::string_view peer) {
  const std::string text = absl::StrReplaceAll(
      peer, {{"%25", "%"}, {"%2F", "/"}, {"%3A", ":"}, {"%5B", "["}, {"%5D", "]"}});
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix-abstract:")) {
    if (!absl::ConsumePrefix(&rest, kPrefix)) return "";
    return std::string(rest.substr(rest.find('/') + 1));
  }
  if (!absl::ConsumePrefix(&rest, "ipv4:") && !absl::ConsumePrefix(&rest, "ipv6:")) return "";
  const auto place = ParseHostPort(rest, std::nullopt, 0);
  return place.ok() ? place->host.substr(0, place->host.find('%')) : "";
}

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1";
}

}  // namespace convene::rendezvous
