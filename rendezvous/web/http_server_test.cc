#include "rendezvous/web/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLarge = size_t{64} << 20;  // more than two sockets hold

HttpResponse Respond(const HttpRequest& request) {
  HttpResponse response;
  const std::string text = request.path == "/large" ? std::string(kLarge, 'x') : request.path;
  response.body = std::make_shared<const std::string>(text);
  if (request.path == "/tagged") response.headers = "ETag: \"5\"\r\n";
  if (request.path == "/same") {
    response.code = 304;
    response.body = std::make_shared<const std::string>();
  }
  return response;
}

std::unique_ptr<HttpServer> StartServer(const HttpServer::Options& options = {}) {
  auto server = HttpServer::Start(options, Respond);
  REQUIRE_OK(server);
  return *std::move(server);
}

class Client {
 public:
  explicit Client(HttpServer* server) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    fd_.Reset(ends[0]);
    const timeval patience = {20, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    REQUIRE(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    server->Adopt(UniqueFd(ends[1]));
  }

  void Say(const std::string& text) {
    REQUIRE(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }

  // Reads until `end`, or until the other side closes.
  std::string HearUntil(const std::string& end) {
    std::string heard;
    char bytes[65536];
    while (end.empty() || !absl::EndsWith(heard, end)) {
      const ssize_t count = recv(fd_.get(), bytes, sizeof(bytes), 0);
      if (count <= 0) {
        REQUIRE((count == 0 || errno == ECONNRESET));  // not: patience is over
        break;
      }
      heard.append(bytes, static_cast<size_t>(count));
    }
    return heard;
  }
  std::string HearAll() { return HearUntil(""); }

 private:
  UniqueFd fd_;
};

TEST_CASE("an answer's own headers stand among the others") {
  const auto server = StartServer();
  Client client(server.get());
  client.Say("GET /tagged HTTP/1.1\r\n\r\n");
  const std::string answer = client.HearUntil("/tagged");
  CHECK(absl::StrContains(answer, "\r\nETag: \"5\"\r\n\r\n/tagged"));
  CHECK(absl::StrContains(answer, "\r\nX-Content-Type-Options: nosniff\r\n"));
}

TEST_CASE("one connection serves several requests, also when they come together") {
  const auto server = StartServer();
  Client client(server.get());
  client.Say("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  const std::string both = client.HearUntil("/b");
  CHECK(absl::StartsWith(both, "HTTP/1.1 200 OK\r\n"));
  CHECK(absl::StrContains(both, "Content-Length: 2\r\n"));
  CHECK(absl::StrContains(both, "Connection: keep-alive\r\n"));
  CHECK(absl::StrContains(both, "\r\n\r\n/aHTTP/1.1 200 OK"));
  client.Say("GET /c HTTP/1.1\r\nConnection: close\r\n\r\n");
  CHECK(absl::EndsWith(client.HearAll(), "Connection: close\r\n\r\n/c"));
}

TEST_CASE("an answer that the client has already tells no length") {
  const auto server = StartServer();
  Client client(server.get());
  client.Say("GET /same HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  const std::string both = client.HearUntil("/b");
  CHECK(absl::StartsWith(both, "HTTP/1.1 304 Not Modified\r\n"));
  CHECK_FALSE(absl::StrContains(both, "Content-Length: 0"));
  CHECK(absl::StrContains(both, "\r\n\r\nHTTP/1.1 200 OK\r\n"));
}

TEST_CASE("HEAD is answered without the body, with its length") {
  const auto server = StartServer();
  Client client(server.get());
  client.Say("HEAD /abc HTTP/1.0\r\n\r\n");
  const std::string answer = client.HearAll();
  CHECK(absl::StrContains(answer, "Content-Length: 4\r\n"));
  CHECK(absl::EndsWith(answer, "\r\n\r\n"));
}

TEST_CASE("a refused request is answered and ends its connection") {
  const auto server = StartServer();
  Client client(server.get());
  client.Say("DELETE / HTTP/1.1\r\n\r\n");
  const std::string answer = client.HearAll();
  CHECK(absl::StartsWith(answer, "HTTP/1.1 405 Method Not Allowed\r\n"));
  CHECK(absl::StrContains(answer, "Allow: GET, HEAD\r\n"));
}

TEST_CASE("a client that is slow to read a large answer holds nobody up") {
  const auto server = StartServer();
  Client slow(server.get());
  slow.Say("GET /large HTTP/1.1\r\nConnection: close\r\n\r\n");
  Client quick(server.get());
  quick.Say("GET /q HTTP/1.0\r\n\r\n");
  CHECK(absl::EndsWith(quick.HearAll(), "/q"));
  CHECK(slow.HearAll().size() > kLarge);
}

TEST_CASE("an unfinished head, an idle and an unread connection are closed at their deadlines") {
  HttpServer::Options options;
  options.head_timeout = absl::Milliseconds(30);
  options.idle_timeout = absl::Milliseconds(30);
  options.send_timeout = absl::Milliseconds(30);
  const auto server = StartServer(options);
  Client silent(server.get());
  Client unfinished(server.get());
  unfinished.Say("GET / HTTP/1.1\r\n");
  Client idle(server.get());
  idle.Say("GET /i HTTP/1.1\r\n\r\n");
  CHECK(silent.HearAll().empty());
  CHECK(unfinished.HearAll().empty());
  CHECK(absl::EndsWith(idle.HearAll(), "/i"));
  Client unreading(server.get());
  unreading.Say("GET /large HTTP/1.1\r\n\r\n");
  // Their silences end behind the other's, whose last bytes may take a moment to find their place.
  for (int i = 0; i < 4; ++i) CHECK(Client(server.get()).HearAll().empty());
  CHECK(unreading.HearAll().size() < kLarge);
}

TEST_CASE("of too many connections the one nearest to its deadline goes") {
  HttpServer::Options options;
  options.most_connections = 2;
  const auto server = StartServer(options);
  Client first(server.get());
  Client second(server.get());
  Client third(server.get());
  CHECK(first.HearAll().empty());
  third.Say("GET /t HTTP/1.0\r\n\r\n");
  CHECK(absl::EndsWith(third.HearAll(), "/t"));
}

}  // namespace
}  // namespace convene::rendezvous
