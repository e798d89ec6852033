// Many handshakes at a time, and those that take too long.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/lock/testing/pumps.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/tls_pump.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a handshake that hangs ends at its limit, and too many end the oldest") {
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer,
                           {.handshake_limit = absl::Milliseconds(50), .most_handshakes = 2});
  Ends first = SocketPair(), second = SocketPair(), third = SocketPair();
  Waiter of_first, of_second, of_third;
  server->Open(std::move(first.server), "", of_first.Callback());
  server->Open(std::move(second.server), "", of_second.Callback());
  server->Open(std::move(third.server), "", of_third.Callback());
  const absl::StatusCode ended = of_first.Take().status().code();
  CHECK((ended == absl::StatusCode::kResourceExhausted ||
         ended == absl::StatusCode::kDeadlineExceeded));
  CHECK_STATUS(of_second.Take().status(), absl::StatusCode::kDeadlineExceeded, "too long");
  CHECK_STATUS(of_third.Take().status(), absl::StatusCode::kDeadlineExceeded, "too long");
}

// Both ends of a connection over TCP from this address of the machine.
Ends ConnectedFrom(const char* address) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place = {};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(place);
  REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&place), size) == 0);
  REQUIRE(listen(listener.get(), 1) == 0);
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&place), &size) == 0);
  Ends ends;
  ends.client.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in from = {};
  from.sin_family = AF_INET;
  REQUIRE(inet_pton(AF_INET, address, &from.sin_addr) == 1);
  REQUIRE(bind(ends.client.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from)) == 0);
  REQUIRE(connect(ends.client.get(), reinterpret_cast<sockaddr*>(&place), size) == 0);
  ends.server.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  REQUIRE(ends.server.valid());
  return ends;
}

// The server's end of a connection whose client has gone already.
UniqueFd GoneFrom(const char* address) { return ConnectedFrom(address).server; }

TEST_CASE("a flood of handshakes from one address ends its own, and others have their turn") {
  Waiter of_member;
  std::vector<std::unique_ptr<Waiter>> of_flood;
  // Ends before those that wait: it tells the rest of the flood.
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer, {.most_handshakes = 4});
  Ends member = ConnectedFrom("127.0.0.2");
  server->Open(std::move(member.server), "", of_member.Callback());
  std::vector<Ends> flood;
  for (int i = 0; i < 12; ++i) {
    flood.push_back(ConnectedFrom("127.0.0.3"));
    of_flood.push_back(std::make_unique<Waiter>());
    server->Open(std::move(flood.back().server), "", of_flood.back()->Callback());
  }
  for (int i = 0; i < 9; ++i) {
    CHECK_STATUS(of_flood[i]->Take().status(), absl::StatusCode::kResourceExhausted, "4");
  }
  // The oldest of all goes on.
  const auto context = TlsContext::Make(Token(kToken), TlsContext::Side::kClient);
  REQUIRE_OK(context);
  const MemberByHand met(*context, std::move(member.client),
                         "\x09"
                         "convene/2");
  CHECK_OK(of_member.Take());
}

TEST_CASE("of addresses with as many handshakes the one with the oldest makes room") {
  Waiter of_oldest, of_newer, of_newest;
  const auto server = Pump(Token(kToken), TlsContext::Side::kServer, {.most_handshakes = 2});
  Ends oldest = ConnectedFrom("127.0.0.3");
  Ends newer = ConnectedFrom("127.0.0.2");
  Ends newest = ConnectedFrom("127.0.0.4");
  server->Open(std::move(oldest.server), "", of_oldest.Callback());
  server->Open(std::move(newer.server), "", of_newer.Callback());
  server->Open(std::move(newest.server), "", of_newest.Callback());
  CHECK_STATUS(of_oldest.Take().status(), absl::StatusCode::kResourceExhausted, "2");
}

TEST_CASE("one handshake of an address does not wait for all of another's") {
  // One step at a time: those that come meanwhile are taken in between.
  const auto server =
      Pump(Token(kToken), TlsContext::Side::kServer, {.handshake_slice = absl::ZeroDuration()});
  Mutex mutex;
  CondVar changed;
  bool is_opened = false;
  std::string order;
  const auto open = [&](const char* address, char name) {
    server->Open(GoneFrom(address), "", [&, name](const auto&) {
      MutexLock lock(&mutex);
      const MonotonicTime deadline = Soon();
      while (!is_opened && Clock::Real().Now() < deadline) {
        changed.WaitFor(&mutex, absl::Seconds(1));
      }
      order += name;
    });
  };
  // The first one holds the thread up until all stand behind it.
  open("127.0.0.3", 'x');
  for (int i = 0; i < 5; ++i) open("127.0.0.3", 'f');
  open("127.0.0.2", 'm');
  Waiter last;
  server->Open(GoneFrom("127.0.0.3"), "", last.Callback());
  {
    MutexLock lock(&mutex);
    is_opened = true;
    changed.SignalAll();
  }
  CHECK_FALSE(last.Take().ok());
  MutexLock lock(&mutex);
  CHECK(order.find('m') <= 2);
}

}  // namespace
}  // namespace convene::rendezvous
