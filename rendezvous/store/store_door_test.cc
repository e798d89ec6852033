// From where the store takes clients.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <filesystem>
#include <iterator>
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
#include "tools/base/testing/poll.h"
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

// Whether the store ends it, and does not answer or stay silent.
bool IsClosed(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t count = recv(fd.get(), &byte, 1, 0);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

const std::string kPong("\x34\x12\0\0", 4);

std::unique_ptr<StoreServer> ShutStore(int threads = 3, size_t most_strangers = 0) {
  StoreServer::Options options;
  options.is_shut = true;
  options.threads = threads;
  options.most_strangers = most_strangers;
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
    for (const UniqueFd& fd : early) CHECK(IsClosed(fd));
    CHECK(IsClosed(ClientFrom(own, server->port())));
  }
  SECTION("every address") {
    server->Admit({});
    for (const UniqueFd& fd : early) CHECK(ReadBytes(fd.get(), 4) == kPong);
  }
}

size_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

TEST_CASE("connections that end before the clients are known leave nothing behind") {
  const auto server = ShutStore();
  const size_t before = OpenFiles();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 30; ++i) {
    clients.push_back(RawSocket());
    ConnectTo(server->port(), clients.back());
    if (i % 2 == 0) SendBytes(clients.back().get(), Handshake());
  }
  CHECK(testing::PollUntil([&] { return OpenFiles() == before + 60; }, kLong));
  clients.clear();
  CHECK(testing::PollUntil([&] { return OpenFiles() == before; }, kLong));
  server->Admit({});
  CHECK_OK(StoreClient::Connect("127.0.0.1", server->port(), kLong));
}

TEST_CASE("of too many that wait for an epoch the oldest goes") {
  const auto server = ShutStore(/*threads=*/1, /*most_strangers=*/3);
  std::vector<UniqueFd> early;
  for (int i = 0; i < 5; ++i) early.push_back(ClientFrom("127.0.0.1", server->port()));
  for (int i = 0; i < 2; ++i) CHECK(IsClosed(early[i]));
  server->Admit({});
  for (int i = 2; i < 5; ++i) CHECK(ReadBytes(early[i].get(), 4) == kPong);
}

TEST_CASE("a client that speaks late is served, and of too many silent ones the oldest goes") {
  const auto server = ShutStore(/*threads=*/1, /*most_strangers=*/3);
  server->Admit({});
  const auto old = StoreClient::Connect("127.0.0.1", server->port(), kLong);
  REQUIRE_OK(old);
  const std::string words = Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234});
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 5; ++i) {
    silent.push_back(RawSocket());
    ConnectTo(server->port(), silent.back());
    if (i % 2 == 0) SendBytes(silent.back().get(), words.substr(0, 1));
    const size_t expected = 2 + static_cast<size_t>(std::min(i, 2));
    CHECK(testing::PollUntil([&] { return server->counts().connections >= expected; }, kLong));
  }
  for (int i = 0; i < 2; ++i) CHECK(IsClosed(silent[i]));
  for (int i = 2; i < 5; ++i) {
    SendBytes(silent[i].get(), words.substr(i % 2 == 0 ? 1 : 0));
    CHECK(ReadBytes(silent[i].get(), 4) == kPong);
  }
  CHECK_OK((*old)->Set("k", "v"));
}

TEST_CASE("a crowd that comes at once and has spoken is served, however few may be silent") {
  const auto server = ShutStore(/*threads=*/1, /*most_strangers=*/3);
  server->Admit({});
  std::vector<UniqueFd> clients;
  std::vector<UniqueFd> accepted;
  for (int i = 0; i < 200; ++i) {
    int fds[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    clients.emplace_back(fds[0]);
    accepted.emplace_back(fds[1]);
    SendBytes(fds[0], Handshake() + Encoded({Opcode::kPing, {}, {}, 0, 0x1234}));
  }
  for (UniqueFd& fd : accepted) server->Adopt(std::move(fd));
  for (const UniqueFd& fd : clients) CHECK(ReadBytes(fd.get(), 4) == kPong);
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
