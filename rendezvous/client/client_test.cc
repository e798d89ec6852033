// The client's errors when another program than a daemon answers. (server_test has the client with
// a daemon.)
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/client/ask_in_turn.h"
#include "rendezvous/client/endpoint.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

// Listens on a free port of the loopback.
class Listener {
 public:
  Listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(socket_.get(), raw, length) == 0);
    REQUIRE(listen(socket_.get(), 16) == 0);
    REQUIRE(getsockname(socket_.get(), raw, &length) == 0);
    endpoint_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  const std::string& endpoint() const { return endpoint_; }
  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
  std::string endpoint_;
};

// Greets every connection and hangs up.
class WrongProgram {
 public:
  // A web server that was asked nonsense.
  WrongProgram() : WrongProgram("HTTP/1.1 400 Bad Request\r\n\r\n", false) {}
  // `resets`: it hangs up without waiting for what it is told.
  WrongProgram(std::string greeting, bool resets)
      : greeting_(std::move(greeting)), resets_(resets), thread_("wrong", [this] { Serve(); }) {}
  ~WrongProgram() {
    shutdown(listener_.fd(), SHUT_RDWR);
    thread_.Join();
  }
  const std::string& endpoint() const { return listener_.endpoint(); }

 private:
  void Serve() {
    for (;;) {
      UniqueFd connection(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection.valid()) return;
      (void)!send(connection.get(), greeting_.data(), greeting_.size(), MSG_NOSIGNAL);
      const linger at_once = {1, 0};
      if (resets_) setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
  }

  const std::string greeting_;
  const bool resets_;
  Listener listener_;
  Thread thread_;
};

absl::Status OpenStatus(const std::string& endpoint, absl::Duration timeout) {
  Hello hello;
  hello.job_id = "job";
  hello.host = "node0";
  AgentStream::Handlers handlers;
  handlers.on_event = [](const DaemonEvent&) {};
  handlers.on_end = [](const absl::Status&) {};
  return AgentStream::Open(endpoint, Incarnation(1), hello, handlers, timeout).status();
}

TEST_CASE("an endpoint must be a host and a port") {
  for (const char* endpoint : {"node0", "node0:", ":29400", "node0:port", "node0:70000"}) {
    CHECK_STATUS(OpenStatus(endpoint, absl::Seconds(1)), absl::StatusCode::kInvalidArgument,
                 "write HOST:PORT");
  }
}

TEST_CASE("when nobody listens the endpoint and the cause are named") {
  std::string endpoint;
  {
    Listener gone;
    endpoint = gone.endpoint();
  }
  CHECK_STATUS(OpenStatus(endpoint, absl::Milliseconds(100)), absl::StatusCode::kUnavailable,
               absl::StrCat("no rendezvous at ", endpoint, " (connect: Connection refused)"));
  CHECK_STATUS(FetchStatus(endpoint, "", absl::Milliseconds(100)), absl::StatusCode::kUnavailable,
               "no rendezvous at");
}

TEST_CASE("a host that no name service knows is given up at the deadline, by its name") {
  const MonotonicTime start = Clock::Real().Now();
  CHECK_STATUS(OpenStatus("no-such-host.invalid:29400", absl::Milliseconds(200)),
               absl::StatusCode::kUnavailable, "no-such-host.invalid");
  CHECK(Clock::Real().Now() - start < absl::Seconds(2));
}

TEST_CASE("a listener that says nothing is given up at the deadline") {
  const Listener silent;
  CHECK_STATUS(OpenStatus(silent.endpoint(), absl::Milliseconds(200)),
               absl::StatusCode::kUnavailable, "did not answer as a rendezvous daemon");
  CHECK_STATUS(FetchStatus(silent.endpoint(), "", absl::Milliseconds(200)),
               absl::StatusCode::kUnavailable, "did not answer in time");
}

TEST_CASE("another program behind the port is no daemon") {
  const WrongProgram program;
  CHECK_STATUS(OpenStatus(program.endpoint(), absl::Seconds(20)),
               absl::StatusCode::kFailedPrecondition, "is no rendezvous daemon");
  CHECK_STATUS(FetchStatus(program.endpoint(), "", absl::Seconds(20)),
               absl::StatusCode::kFailedPrecondition, "is no rendezvous daemon");
}

TEST_CASE("a proxy with nobody behind it is asked until the deadline, and suspected in words") {
  const WrongProgram proxy("", GENERATE(false, true));
  const MonotonicTime begin = Clock::Real().Now();
  const absl::Status opened = OpenStatus(proxy.endpoint(), absl::Seconds(4));
  CHECK_STATUS(opened, absl::StatusCode::kUnavailable, "as a proxy or a load balancer does");
  CHECK_THAT(std::string(opened.message()), Catch::Contains("wants --join-token-file"));
  CHECK(Clock::Real().Now() - begin > absl::Seconds(1));
  CHECK_FALSE(AgentStream::RefusedAt(opened).has_value());
}

TEST_CASE("where a program of this machine listens, no proxy is in the way") {
  const WrongProgram other("", GENERATE(false, true));
  const auto opened =
      AgentStream::Open(other.endpoint(), Incarnation(1), Hello(), AgentStream::Handlers(),
                        absl::Seconds(20), /*is_listened_to_here=*/true);
  CHECK_STATUS(opened, absl::StatusCode::kFailedPrecondition, "is the port right");
}

TEST_CASE("a machine where nobody listens says so, and when it was asked; a silent one does not") {
  std::string endpoint;
  {
    const Listener gone;
    endpoint = gone.endpoint();
  }
  const auto open = [](const std::string& at) {
    return AgentStream::Open(at, Incarnation(1), Hello(), AgentStream::Handlers(),
                             absl::Milliseconds(100))
        .status();
  };
  const MonotonicTime begin = Clock::Real().Now();
  const absl::Status refused = open(endpoint);
  CHECK_STATUS(refused, absl::StatusCode::kUnavailable, "Connection refused");
  const auto refused_at = AgentStream::RefusedAt(refused);
  REQUIRE(refused_at.has_value());
  CHECK(*refused_at >= begin);
  CHECK(*refused_at <= Clock::Real().Now());
  const Listener silent;
  CHECK_FALSE(AgentStream::RefusedAt(open(silent.endpoint())).has_value());
}

TEST_CASE("of several endpoints each is asked, and named with its reason when none answers") {
  std::string gone;
  {
    const Listener listener;
    gone = listener.endpoint();
  }
  const Listener silent;
  const std::string list = absl::StrCat(gone, ",", silent.endpoint());
  const MonotonicTime begin = Clock::Real().Now();
  const absl::Status asked = FetchStatus(list, "", absl::Milliseconds(600)).status();
  CHECK_STATUS(asked, absl::StatusCode::kUnavailable,
               absl::StrCat("none of 2 endpoints answers as the rendezvous: ", gone,
                            " (connect: Connection refused), ", silent.endpoint(), " ("));
  CHECK_THAT(std::string(asked.message()), Catch::Contains("did not answer in time"));
  CHECK(Clock::Real().Now() - begin < absl::Seconds(3));
}

TEST_CASE("of several endpoints one that is another program's ends no search") {
  const WrongProgram program;
  const Listener silent;
  const std::string list = absl::StrCat(program.endpoint(), ",", silent.endpoint());
  const absl::Status asked = FetchStatus(list, "", absl::Milliseconds(600)).status();
  CHECK_STATUS(asked, absl::StatusCode::kUnavailable, "none of 2 endpoints answers");
  CHECK_THAT(std::string(asked.message()), Catch::Contains("is no rendezvous daemon"));
}

TEST_CASE("of several endpoints one that refuses ends no search, and is told when none answers") {
  const Endpoint several("a:1,b:1,c:1");
  int asked = 0;
  const auto ask = [&](const std::string& leader, bool all_refuse) {
    asked = 0;
    return AskInTurn(several, absl::Seconds(20), [&](const Endpoint& each, absl::Duration) {
      ++asked;
      if (each.address() == leader) return absl::OkStatus();
      return all_refuse || each.address() == "b:1" ? absl::PermissionDeniedError("another token")
                                                   : absl::UnavailableError("refused");
    });
  };
  CHECK_OK(ask("c:1", false));
  CHECK(asked == 3);
  CHECK_STATUS(ask("none", true), absl::StatusCode::kPermissionDenied, "c:1 (another token)");
  CHECK(asked == 3);
  const absl::Status not_asked_long =
      AskInTurn(several, absl::ZeroDuration(), [](const Endpoint& each, absl::Duration) {
        return each.address() == "b:1" ? absl::PermissionDeniedError("another token")
                                       : absl::UnavailableError("refused");
      });
  CHECK_STATUS(not_asked_long, absl::StatusCode::kPermissionDenied,
               "a:1 (refused), b:1 (another token), c:1 (refused)");
}

TEST_CASE("an endpoint that is dialled once is left at its first refusal, for the next one") {
  std::string gone;
  {
    const Listener listener;
    gone = listener.endpoint();
  }
  const MonotonicTime begin = Clock::Real().Now();
  const auto opened =
      AgentStream::Open(Endpoint("").At(gone, std::nullopt, {.is_once = true}), Incarnation(1),
                        Hello(), AgentStream::Handlers(), absl::Seconds(20));
  CHECK_STATUS(opened, absl::StatusCode::kUnavailable, "Connection refused");
  CHECK(Clock::Real().Now() - begin < absl::Seconds(5));
}

}  // namespace
}  // namespace convene::rendezvous
