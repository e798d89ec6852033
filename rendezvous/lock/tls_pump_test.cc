#include "rendezvous/lock/tls_pump.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "rendezvous/net/connect.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";
constexpr char kOther[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPg";
constexpr absl::Duration kPatience = absl::Seconds(20);

MonotonicTime Soon() { return Clock::Real().Now() + kPatience; }

std::unique_ptr<TlsPump> Pump(const char* token, TlsContext::Side side,
                              const TlsPump::Options& options = {}) {
  auto context = TlsContext::Make(token, side);
  REQUIRE_OK(context);
  auto pump = TlsPump::Start(*std::move(context), side, options);
  REQUIRE_OK(pump);
  return *std::move(pump);
}

// How a handshake ended.
class Waiter {
 public:
  TlsPump::OnOpened Callback() {
    return [this](absl::StatusOr<TlsPump::Opened> opened) {
      MutexLock lock(&mutex_);
      opened_ = std::move(opened);
      changed_.SignalAll();
    };
  }
  absl::StatusOr<TlsPump::Opened> Take() {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Soon();
    while (!opened_.has_value()) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
    return *std::move(opened_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<absl::StatusOr<TlsPump::Opened>> opened_ ABSL_GUARDED_BY(mutex_);
};

struct Ends {
  UniqueFd server, client;
};
Ends SocketPair() {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Both sides of a connection between members, open.
struct Members {
  std::unique_ptr<TlsPump> server = Pump(kToken, TlsContext::Side::kServer);
  std::unique_ptr<TlsPump> client = Pump(kToken, TlsContext::Side::kClient);
  UniqueFd at_server, at_client;

  Members() {
    Ends ends = SocketPair();
    Waiter of_server, of_client;
    server->Open(std::move(ends.server), of_server.Callback());
    client->Open(std::move(ends.client), of_client.Callback());
    auto opened = of_server.Take();
    REQUIRE_OK(opened);
    CHECK(opened->is_member);
    at_server = std::move(opened->plain);
    auto dialled = of_client.Take();
    REQUIRE_OK(dialled);
    at_client = std::move(dialled->plain);
  }
};

// Called on any thread. Whether all of it was said.
bool TrySay(int fd, const std::string& text) {
  size_t said = 0;
  while (said < text.size()) {
    if (!AwaitReady(fd, POLLOUT, Soon()).ok()) return false;
    const ssize_t count = send(fd, text.data() + said, text.size() - said, MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN) return false;
    if (count > 0) said += static_cast<size_t>(count);
  }
  return true;
}

void Say(int fd, const std::string& text) { REQUIRE(TrySay(fd, text)); }

// So many bytes, or all until the end. Called on any thread.
std::string Hear(int fd, size_t most) {
  std::string heard;
  char bytes[65536];
  while (heard.size() < most) {
    if (!AwaitReady(fd, POLLIN, Soon()).ok()) return "no byte in time";
    const ssize_t count = recv(fd, bytes, std::min(sizeof(bytes), most - heard.size()), 0);
    if (count == 0) break;
    if (count < 0 && errno != EAGAIN) return "broken";
    if (count > 0) heard.append(bytes, static_cast<size_t>(count));
  }
  return heard;
}

TEST_CASE("members of one token hear each other, and an end goes on to the other side") {
  Members members;
  Say(members.at_client.get(), "from the client");
  CHECK(Hear(members.at_server.get(), 15) == "from the client");
  Say(members.at_server.get(), "from the server");
  CHECK(Hear(members.at_client.get(), 15) == "from the server");
  // Half an end: the other direction goes on.
  REQUIRE(shutdown(members.at_client.get(), SHUT_WR) == 0);
  CHECK(Hear(members.at_server.get(), 1).empty());
  Say(members.at_server.get(), "last words");
  members.at_server.Reset();
  CHECK(Hear(members.at_client.get(), 100) == "last words");
}

TEST_CASE("many bytes arrive whole, both ways at once, and a slow reader holds up its own alone") {
  Members members;
  std::string there(20 << 20, '\0'), back(20 << 20, '\0');
  for (size_t i = 0; i < there.size(); ++i) there[i] = static_cast<char>(i * 7 + i / 1000);
  for (size_t i = 0; i < back.size(); ++i) back[i] = static_cast<char>(i * 5 + i / 999);
  std::string heard_back;
  bool has_sent = false;
  bool has_answered = false;
  Thread sender("sender", [&] { has_sent = TrySay(members.at_client.get(), there); });
  Thread answerer("answerer", [&] { has_answered = TrySay(members.at_server.get(), back); });
  Thread hearer("hearer", [&] { heard_back = Hear(members.at_client.get(), back.size()); });
  // Nobody reads at the server yet, and the other direction arrives all the same.
  answerer.Join();
  hearer.Join();
  const std::string heard_there = Hear(members.at_server.get(), there.size());
  sender.Join();
  CHECK(has_sent);
  CHECK(has_answered);
  CHECK(heard_back == back);
  CHECK(heard_there == there);
}

TEST_CASE("another token opens nothing, and the client hears why") {
  const auto server = Pump(kToken, TlsContext::Side::kServer);
  const auto client = Pump(kOther, TlsContext::Side::kClient);
  Ends ends = SocketPair();
  Waiter of_server, of_client;
  server->Open(std::move(ends.server), of_server.Callback());
  client->Open(std::move(ends.client), of_client.Callback());
  CHECK_STATUS(of_client.Take().status(), absl::StatusCode::kPermissionDenied, "TLS handshake");
  CHECK_STATUS(of_server.Take().status(), absl::StatusCode::kPermissionDenied, "");
}

// A client with a certificate that the server does not know, and that takes any server.
class Stranger {
 public:
  explicit Stranger(bool has_certificate, UniqueFd socket) : socket_(std::move(socket)) {
    const int flags = fcntl(socket_.get(), F_GETFL);
    fcntl(socket_.get(), F_SETFL, flags & ~O_NONBLOCK);
    context_ = SSL_CTX_new(TLS_client_method());
    if (has_certificate) {
      const auto other = TlsContext::Make(kOther, TlsContext::Side::kClient);
      REQUIRE_OK(other);
      SSL_CTX_use_certificate(context_, SSL_CTX_get0_certificate(other->get()));
      SSL_CTX_use_PrivateKey(context_, SSL_CTX_get0_privatekey(other->get()));
    }
    tls_ = SSL_new(context_);
    SSL_set_fd(tls_, socket_.get());
  }
  ~Stranger() {
    SSL_free(tls_);
    SSL_CTX_free(context_);
  }
  bool Shake() { return SSL_connect(tls_) == 1; }
  // "" where the connection ended.
  std::string Hear() {
    char bytes[100];
    const int count = SSL_read(tls_, bytes, sizeof(bytes));
    return count > 0 ? std::string(bytes, static_cast<size_t>(count)) : "";
  }
  void Say(const std::string& text) { SSL_write(tls_, text.data(), static_cast<int>(text.size())); }

 private:
  UniqueFd socket_;
  SSL_CTX* context_;
  SSL* tls_;
};

TEST_CASE("a client with another certificate is turned away, one without any is a guest") {
  const auto server = Pump(kToken, TlsContext::Side::kServer);
  {
    Ends ends = SocketPair();
    Waiter waiter;
    server->Open(std::move(ends.server), waiter.Callback());
    Stranger stranger(true, std::move(ends.client));
    stranger.Shake();  // a client of TLS 1.3 believes that it is done
    CHECK(stranger.Hear().empty());
    CHECK_STATUS(waiter.Take().status(), absl::StatusCode::kPermissionDenied, "");
  }
  Ends ends = SocketPair();
  Waiter waiter;
  server->Open(std::move(ends.server), waiter.Callback());
  Stranger guest(false, std::move(ends.client));
  CHECK(guest.Shake());
  auto opened = waiter.Take();
  REQUIRE_OK(opened);
  CHECK(!opened->is_member);
  guest.Say("a page, please");
  CHECK(Hear(opened->plain.get(), 14) == "a page, please");
  Say(opened->plain.get(), "here");
  CHECK(guest.Hear() == "here");
}

TEST_CASE("a handshake that hangs ends at its limit, and too many end the oldest") {
  const auto server = Pump(kToken, TlsContext::Side::kServer,
                           {.handshake_limit = absl::Milliseconds(50), .most_handshakes = 2});
  Ends first = SocketPair(), second = SocketPair(), third = SocketPair();
  Waiter of_first, of_second, of_third;
  server->Open(std::move(first.server), of_first.Callback());
  server->Open(std::move(second.server), of_second.Callback());
  server->Open(std::move(third.server), of_third.Callback());
  const absl::StatusCode ended = of_first.Take().status().code();
  CHECK((ended == absl::StatusCode::kResourceExhausted ||
         ended == absl::StatusCode::kDeadlineExceeded));
  CHECK_STATUS(of_second.Take().status(), absl::StatusCode::kDeadlineExceeded, "too long");
  CHECK_STATUS(of_third.Take().status(), absl::StatusCode::kDeadlineExceeded, "too long");
}

TEST_CASE("bytes that are no TLS, and an end in the handshake, are told") {
  const auto server = Pump(kToken, TlsContext::Side::kServer);
  {
    Ends ends = SocketPair();
    Waiter waiter;
    server->Open(std::move(ends.server), waiter.Callback());
    Say(ends.client.get(), std::string("\x16\x03\x01\x00\x05hello there, this is no hello", 34));
    CHECK_STATUS(waiter.Take().status(), absl::StatusCode::kPermissionDenied, "");
  }
  Ends ends = SocketPair();
  Waiter waiter;
  server->Open(std::move(ends.server), waiter.Callback());
  ends.client.Reset();
  CHECK_STATUS(waiter.Take().status(), absl::StatusCode::kUnavailable, "ended");
}

TEST_CASE("the pump's end sends last words, and ends the other side") {
  auto server = Pump(kToken, TlsContext::Side::kServer);
  Ends ends = SocketPair();
  Waiter waiter;
  server->Open(std::move(ends.server), waiter.Callback());
  Stranger guest(false, std::move(ends.client));
  CHECK(guest.Shake());
  auto opened = waiter.Take();
  REQUIRE_OK(opened);
  // More than the connection holds, while the guest reads nothing: the rest waits before the pump.
  std::string words;
  const std::string piece(4096, 'w');
  while (words.size() < (8 << 20)) {
    const ssize_t said = send(opened->plain.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
    if (said > 0) words.append(piece, 0, static_cast<size_t>(said));
    if (said < 0 &&
        !AwaitReady(opened->plain.get(), POLLOUT, Clock::Real().Now() + absl::Milliseconds(200))
             .ok())
      break;
  }
  opened->plain.Reset();
  Thread end("end", [&] { server.reset(); });
  std::string heard;
  for (std::string more = guest.Hear(); !more.empty(); more = guest.Hear()) heard += more;
  end.Join();
  CHECK(heard.size() == words.size());
}

}  // namespace
}  // namespace convene::rendezvous
