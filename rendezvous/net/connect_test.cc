#include "rendezvous/net/connect.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/clock.h"
#include "tools/base/source_address.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

struct Pipe {
  Pipe() {
    int fds[2];
    REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
    read_end = UniqueFd(fds[0]);
    write_end = UniqueFd(fds[1]);
  }
  UniqueFd read_end;
  UniqueFd write_end;
};

// Nobody listens there: the port is taken, so that nobody else can.
struct TakenPort {
  TakenPort() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto* const raw = reinterpret_cast<sockaddr*>(&address.storage);
    reinterpret_cast<sockaddr_in*>(raw)->sin_family = AF_INET;
    reinterpret_cast<sockaddr_in*>(raw)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.length = sizeof(sockaddr_in);
    REQUIRE(bind(socket.get(), raw, address.length) == 0);
    REQUIRE(getsockname(socket.get(), raw, &address.length) == 0);
  }
  UniqueFd socket;
  ResolvedAddress address;
};

TEST_CASE("a port that others are told by a loopback address is bound to that address alone") {
  for (const char* loopback : {"127.0.0.1", "127.0.1.1", "::1"}) {
    CHECK(AddressToBind(loopback) == loopback);
  }
  CHECK(AddressToBind("localhost") == "127.0.0.1");
  for (const char* other : {"10.0.0.1", "fe80::1", "node0", "0.0.0.0"}) {
    CHECK(AddressToBind(other) == kAllAddresses);
  }
}

TEST_CASE("each address of a name comes first in its turn, however the name service mixes them") {
  const auto of = [](const char* host) {
    const auto resolved = ResolveHost(host, absl::ZeroDuration(), 7);
    REQUIRE_OK(resolved);
    return resolved->front();
  };
  const auto text = [](const ResolvedAddress& address) { return AddressText(address.get()); };
  const std::vector<ResolvedAddress> mixed = {of("10.0.0.3"), of("10.0.0.1"), of("10.0.0.2")};
  const std::vector<ResolvedAddress> other = {mixed[1], mixed[2], mixed[0]};
  CHECK(text(InTurn(mixed, 0).front()) == "10.0.0.3");
  CHECK(text(InTurn(other, 0).front()) == "10.0.0.1");
  std::set<std::string> first;
  for (int turn = 1; turn <= 3; ++turn) {
    CHECK(InTurn(mixed, turn).size() == 3);
    first.insert(text(InTurn(turn % 2 == 0 ? mixed : other, turn).front()));
  }
  CHECK(first.size() == 3);
}

// A program that is quick to hang up, and a connecting thread that runs late: connect itself
// reports the reset.
TEST_CASE("a connection that was reset at once is a connection, however late that is seen") {
  const auto listener = ListenOn("127.0.0.1", 0);
  REQUIRE_OK(listener);
  const auto addresses = ResolveHost("127.0.0.1", absl::ZeroDuration(), listener->port);
  REQUIRE_OK(addresses);
  const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(60);
  const linger at_once = {1, 0};  // accepted connections inherit it
  const int listening = listener->fd.get();
  REQUIRE(setsockopt(listening, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
  Thread hangs_up("hangs_up", [listening, deadline] {
    do {
      if (!AwaitReady(listening, POLLIN, deadline).ok()) return;
    } while (UniqueFd(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC)).valid());
  });
  for (int i = 0; i < 5000; ++i) {
    const auto connection = ConnectTo(addresses->front(), deadline);
    CHECK_OK(connection);
    char byte;
    if (!connection.ok() || !AwaitReady(connection->get(), POLLIN, deadline).ok()) break;
    CHECK(recv(connection->get(), &byte, 1, 0) <= 0);
  }
  shutdown(listening, SHUT_RDWR);
  hangs_up.Join();
}

// On a loaded machine the thread that waits may run again only after its deadline.
TEST_CASE("an answer that is there counts, although the time is over") {
  const MonotonicTime over = Clock::Real().Now() - absl::Seconds(1);
  const Pipe pipe;
  CHECK_STATUS(AwaitReady(pipe.read_end.get(), POLLIN, over), absl::StatusCode::kDeadlineExceeded,
               "no answer in time");
  REQUIRE(write(pipe.write_end.get(), "x", 1) == 1);
  CHECK_OK(AwaitReady(pipe.read_end.get(), POLLIN, over));
  const TakenPort nobody;
  CHECK_STATUS(ConnectTo(nobody.address, over).status(), absl::StatusCode::kUnavailable,
               "Connection refused");
}

}  // namespace
}  // namespace convene::rendezvous
