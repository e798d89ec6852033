#include "rendezvous/server/front.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "spdlog/details/null_mutex.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

TEST_CASE("the first bytes tell the protocol, and too few of them do not") {
  struct Case {
    std::string bytes;
    Protocol protocol;
  };
  for (const Case& c : std::vector<Case>{
           {"", Protocol::kUndecided},
           {"P", Protocol::kUndecided},
           {"PRI", Protocol::kUndecided},
           {"PRI ", Protocol::kGrpc},
           {"PRI * HTTP/2.0", Protocol::kGrpc},
           {"PO", Protocol::kHttp},
           {"PRO", Protocol::kHttp},
           {"PRIM", Protocol::kHttp},
           {"G", Protocol::kHttp},
           {"HEAD", Protocol::kHttp},
           {std::string(1, '\0'), Protocol::kStore},
           {"\x16\x03\x01", Protocol::kTls},
           {"\xff", Protocol::kUnknown},
           {"\r\n", Protocol::kUnknown},
           {" GET", Protocol::kUnknown},
       }) {
    INFO("\"" << c.bytes << "\"");
    CHECK(ProtocolOf(c.bytes) == c.protocol);
  }
}

TEST_CASE("which connections get to the server of their protocol") {
  const Protocol all[] = {Protocol::kGrpc, Protocol::kStore, Protocol::kHttp, Protocol::kTls};
  const auto passing = [&](Origin origin, bool is_locked) {
    std::string passes;
    for (const Protocol protocol : all) {
      if (WhyRefused(protocol, origin, is_locked).empty()) {
        passes += "GSHT"[static_cast<int>(protocol) - static_cast<int>(Protocol::kGrpc)];
      }
    }
    CHECK(!WhyRefused(Protocol::kUnknown, origin, is_locked).empty());
    return passes;
  };
  CHECK(passing(Origin::kPlain, false) == "GSH");
  CHECK(passing(Origin::kPlain, true) == "ST");
  CHECK(passing(Origin::kGuest, true) == "H");
  CHECK(passing(Origin::kViewer, true) == "H");
}

// Keeps the connections that the front hands on.
class FrontTest {
 public:
  explicit FrontTest(Front::Options options = {}) {
    options.host = "127.0.0.1";
    auto front = Front::Listen(options);
    REQUIRE_OK(front);
    front_ = *std::move(front);
    REQUIRE_OK(front_->Serve({[this](UniqueFd fd) { Take("grpc", std::move(fd)); },
                              [this](UniqueFd fd) { Take("store", std::move(fd)); },
                              [this](UniqueFd fd, Origin) { Take("http", std::move(fd)); }}));
  }

  UniqueFd Connect() {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(front_->port()));
    REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    return fd;
  }

  // The next connection handed on, as "protocol: its bytes".
  std::string Next() {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (taken_.empty()) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
    const auto [name, fd] = std::move(taken_.front());
    taken_.pop_front();
    char bytes[64];
    const ssize_t count = recv(fd.get(), bytes, sizeof(bytes), 0);
    return name + ": " + std::string(bytes, count > 0 ? static_cast<size_t>(count) : 0);
  }

 private:
  void Take(const std::string& name, UniqueFd fd) {
    MutexLock lock(&mutex_);
    taken_.emplace_back(name, std::move(fd));
    changed_.Signal();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::pair<std::string, UniqueFd>> taken_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Front> front_;  // first to go
};

void Say(const UniqueFd& fd, const std::string& bytes) {
  REQUIRE(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
}

// Waits for the other side's close, with or without unread bytes; false without one.
bool IsClosed(const UniqueFd& fd) {
  const timeval patience = {20, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  char byte;
  const ssize_t count = recv(fd.get(), &byte, 1, 0);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

TEST_CASE("each protocol finds its server with all its bytes unread") {
  FrontTest test;
  const UniqueFd grpc = test.Connect();
  Say(grpc, "PRI * HTTP/2.0\r\n");
  CHECK(test.Next() == "grpc: PRI * HTTP/2.0\r\n");
  const UniqueFd store = test.Connect();
  Say(store, std::string("\0\xCE\xF7", 3));
  CHECK(test.Next() == "store: " + std::string("\0\xCE\xF7", 3));
  const UniqueFd http = test.Connect();
  Say(http, "GET / HTTP/1.1\r\n");
  CHECK(test.Next() == "http: GET / HTTP/1.1\r\n");
}

TEST_CASE("a client that sends byte by byte is told apart all the same") {
  FrontTest test;
  const UniqueFd slow = test.Connect();
  for (const char* byte : {"P", "R", "I"}) {
    Say(slow, byte);
    // Another connection that is served meanwhile proves that the front has seen the first one's
    // byte.
    const UniqueFd other = test.Connect();
    Say(other, "GET");
    CHECK(test.Next() == "http: GET");
  }
  Say(slow, " ");
  CHECK(test.Next() == "grpc: PRI ");
}

TEST_CASE("what speaks none of the protocols is closed") {
  FrontTest test;
  const UniqueFd tls = test.Connect();
  Say(tls, "\x16\x03\x01");
  CHECK(IsClosed(tls));
}

TEST_CASE("a locked front tells a plain client in TLS's words, and closes") {
  Front::Options options;
  options.is_locked = true;
  FrontTest test(options);
  const UniqueFd plain = test.Connect();
  Say(plain, "PRI * HTTP/2.0\r\n");
  char bytes[16];
  REQUIRE(recv(plain.get(), bytes, sizeof(bytes), 0) == 7);
  CHECK(std::string(bytes, 7) == std::string("\x15\x03\x03\x00\x02\x02\x0a", 7));
  CHECK(IsClosed(plain));
}

TEST_CASE("a locked front tells a plain browser or probe what it wants, and closes") {
  Front::Options options;
  options.is_locked = true;
  FrontTest test(options);
  const UniqueFd plain = test.Connect();
  Say(plain, "GET /metrics HTTP/1.1\r\n");
  std::string answer;
  char bytes[256];
  ssize_t count;
  while ((count = recv(plain.get(), bytes, sizeof(bytes), 0)) > 0) {
    answer.append(bytes, static_cast<size_t>(count));
  }
  CHECK(count == 0);
  CHECK_THAT(answer, Catch::StartsWith("HTTP/1.1 400 "));
  CHECK_THAT(answer, Catch::Contains("https://"));
}

TEST_CASE("a client that says nothing is closed after a while, and one that says too little too") {
  Front::Options options;
  options.silence = absl::Milliseconds(50);
  FrontTest test(options);
  const UniqueFd silent = test.Connect();
  const UniqueFd hesitant = test.Connect();
  Say(hesitant, "PR");
  CHECK(IsClosed(silent));
  CHECK(IsClosed(hesitant));
}

TEST_CASE("a client that goes before it is known is forgotten") {
  FrontTest test;
  const UniqueFd half = test.Connect();
  Say(half, "PR");
  shutdown(half.get(), SHUT_WR);
  CHECK(IsClosed(half));
}

TEST_CASE("silent clients do not keep others out: the oldest of too many is closed") {
  Front::Options options;
  options.most_undecided = 4;
  FrontTest test(options);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(test.Connect());
  CHECK(IsClosed(silent[0]));
  Say(silent[4], "GET");
  CHECK(test.Next() == "http: GET");
}

#ifndef CONVENE_SANITIZER

// Left out under UBSan, which looks at types through a pipe: without descriptors every object
// fails. Waits for a line of the log. Locks by itself.
class LogListener final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  void WaitFor(const std::string& text) {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (!absl::StrContains(heard_, text)) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    MutexLock lock(&mutex_);
    heard_.append(message.payload.data(), message.payload.size());
    changed_.Signal();
  }
  void flush_() override {}

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string heard_ ABSL_GUARDED_BY(mutex_);
};

TEST_CASE("a process without descriptors says so and accepts again when it has some") {
  const auto log = std::make_shared<LogListener>();
  spdlog::default_logger()->sinks() = {log};
  FrontTest test;
  const UniqueFd client = test.Connect();
  Say(client, "GET");
  CHECK(test.Next() == "http: GET");
  sockaddr_in address = {};
  socklen_t length = sizeof(address);
  REQUIRE(getpeername(client.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const UniqueFd late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit none = before;
  none.rlim_cur = 0;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  // The kernel takes the connection; the front has no descriptor for it.
  const int connected =
      connect(late.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  log->WaitFor("cannot accept connections");
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(connected == 0);
  Say(late, "HEAD");
  CHECK(test.Next() == "http: HEAD");
}

#endif

}  // namespace
}  // namespace convene::rendezvous
