#include "rendezvous/net/peer_address.h"

#include <catch2/catch.hpp>

namespace convene::rendezvous {
namespace {

TEST_CASE("an address is found in what gRPC says of a peer") {
  CHECK(HostOfPeer("ipv4:10.0.0.7:4711") == "10.0.0.7");
  CHECK(HostOfPeer("ipv6:%5Bfd00::7%5D:4711") == "fd00::7");
  CHECK(HostOfPeer("ipv6:[fe80::7%25eth0]:4711") == "fe80::7");
  CHECK(HostOfPeer("unix-abstract:convene-tls/12ab/fd00::7") == "fd00::7");
  CHECK(HostOfPeer("unix-abstract:convene-tls%2F12ab%2Ffd00%3A%3A7") == "fd00::7");
}

TEST_CASE("where a peer has no address, or makes one up, none is found") {
  for (const char* peer :
       {"", "ipv4:", "ipv4:10.0.0.7", "ipv4:10.0.0.7:x", "unix:/tmp/convene-tls/1/10.0.0.7",
        "unix-abstract:other/1/10.0.0.7", "10.0.0.7:4711"}) {
    INFO(peer);
    CHECK(HostOfPeer(peer).empty());
  }
}

TEST_CASE("loopback is 127.0.0.0/8 and ::1") {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) CHECK(IsLoopback(address));
  for (const char* address : {"", "10.0.0.7", "12.7.0.1", "::", "fd00::1"}) {
    CHECK_FALSE(IsLoopback(address));
  }
}

}  // namespace
}  // namespace convene::rendezvous
