#include "tools/base/source_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "tools/base/testing/status_testing.h"

namespace convene {
namespace {

sockaddr_in6 Ip6(const char* text) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  REQUIRE(inet_pton(AF_INET6, text, &address.sin6_addr) == 1);
  return address;
}

std::string Text(const sockaddr_in6& address) {
  return AddressText(reinterpret_cast<const sockaddr*>(&address));
}

TEST_CASE("an address is shown in numbers, IPv4 inside IPv6 as itself") {
  CHECK(Text(Ip6("fd00::7")) == "fd00::7");
  CHECK(Text(Ip6("::ffff:10.1.2.3")) == "10.1.2.3");
  sockaddr unknown = {};
  CHECK(AddressText(&unknown).empty());
}

TEST_CASE("this machine talks to its loopback from there") {
  sockaddr_in loopback = {};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(9);
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto source = SourceTowards(reinterpret_cast<const sockaddr*>(&loopback), sizeof(loopback));
  REQUIRE_OK(source);
  CHECK(*source == "127.0.0.1");
}

}  // namespace
}  // namespace convene
