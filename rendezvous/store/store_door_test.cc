// From where the store takes clients.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/store/testing/raw_client.h"
#include "rendezvous/store/wire.h"
#include "tools/base/source_address.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLong = absl::Seconds(20);

// An address of this machine beside loopback; "": it has none.
std::string OtherOwnAddress() {
  const auto own = OwnAddresses(/*with_link_local=*/false);
  REQUIRE_OK(own);
  for (const std::string& address : *own) {
    if (address.find(':') == std::string::npos && address.substr(0, 4) != "127.") return address;
  }
  return "";
}

// A client at `source` that reaches the store over 127.0.0.1, as no client of this machine does.
UniqueFd ClientFrom(const std::string& source, int port) {
  UniqueFd fd = RawSocket();
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  REQUIRE(inet_pton(AF_INET, source.c_str(), &address.sin_addr) == 1);
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  ConnectTo(port, fd);
  SendBytes(fd.get(), Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234}));
  return fd;
}

const std::string kPong("\x34\x12\0\0", 4);

std::unique_ptr<StoreServer> ShutStore() {
  StoreServer::Options options;
  options.is_shut = true;
  options.threads = 3;
  auto server = StoreServer::Start(options);
  REQUIRE_OK(server);
  return *std::move(server);
}

TEST_CASE("who comes before the clients are known waits, and is served or turned away then") {
  const std::string own = OtherOwnAddress();
  if (own.empty()) return;  // a network namespace with loopback alone
  const auto server = ShutStore();
  std::vector<UniqueFd> early;
  for (int i = 0; i < 6; ++i) early.push_back(ClientFrom(own, server->port()));
  char byte = 0;
  for (const UniqueFd& fd : early) {
    pollfd answer = {fd.get(), POLLIN, 0};
    CHECK(poll(&answer, 1, 20) == 0);
  }
  SECTION("an address of the run") {
    server->Admit({"192.0.2.1", own});
    for (const UniqueFd& fd : early) CHECK(ReadBytes(fd.get(), 4) == kPong);
    CHECK(ReadBytes(ClientFrom(own, server->port()).get(), 4) == kPong);
  }
  SECTION("a stranger's address") {
    server->Admit({"192.0.2.1"});
    for (const UniqueFd& fd : early) CHECK(recv(fd.get(), &byte, 1, 0) <= 0);
    CHECK(recv(ClientFrom(own, server->port()).get(), &byte, 1, 0) <= 0);
  }
  SECTION("every address") {
    server->Admit({});
    for (const UniqueFd& fd : early) CHECK(ReadBytes(fd.get(), 4) == kPong);
  }
}

TEST_CASE("clients of the store's own machine are served whatever the addresses of the run are") {
  const auto server = ShutStore();
  server->Admit({"192.0.2.1"});
  for (const std::string& host : {std::string("127.0.0.1"), OtherOwnAddress()}) {
    if (host.empty()) continue;
    const auto client = StoreClient::Connect(host, server->port(), kLong);
    REQUIRE_OK(client);
    CHECK_OK((*client)->Set("k", "v"));
  }
}

}  // namespace
}  // namespace convene::rendezvous
