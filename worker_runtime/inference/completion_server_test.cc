#include "worker_runtime/inference/completion_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

std::unique_ptr<CompletionServer> Serve(AnswerRequest answer) {
  auto server = CompletionServer::Start("127.0.0.1", 0, "tiny", std::move(answer));
  REQUIRE_OK(server.status());
  return *std::move(server);
}

// One connection, with one request.
class Client {
 public:
  Client(const CompletionServer& server, const std::string& request)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {.sin_family = AF_INET,
                           .sin_port = htons(static_cast<uint16_t>(server.port()))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE_OK(WriteAll(fd_.get(), request, "the server"));
  }

  // Some bytes of the answer; "" at its end.
  std::string Read() {
    char buffer[4096];
    const ssize_t n = read(fd_.get(), buffer, sizeof(buffer));
    return {buffer, static_cast<size_t>(n > 0 ? n : 0)};
  }

  // The connection ends by an RST in the place of a FIN.
  void Reset() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    REQUIRE(setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
    fd_.Reset();
  }

 private:
  UniqueFd fd_;
};

std::string PostText(const std::string& body, const std::string& path) {
  return absl::StrCat("POST ", path,
                      " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: ", body.size(),
                      "\r\n\r\n", body);
}

std::string Ask(const CompletionServer& server, const std::string& request) {
  Client client(server, request);
  std::string answer;
  for (std::string more = client.Read(); !more.empty(); more = client.Read()) answer += more;
  return answer;
}

std::string Post(const CompletionServer& server, const std::string& body, int status = 200,
                 const std::string& path = "/v1/completions") {
  std::string answer = Ask(server, PostText(body, path));
  CHECK(absl::StartsWith(answer, absl::StrCat("HTTP/1.1 ", status, " ")));
  return answer;
}

// Each choice says its number, and then its end.
absl::StatusOr<Usage> Count(const CompletionRequest& request, ShowPiece show, GoesOn) {
  for (int i = 0; i < request.choices; ++i) {
    for (const Choice& piece :
         {Choice{std::to_string(i), ""}, Choice{"", ""}, Choice{"!", "stop"}}) {
      show(i, piece);
    }
  }
  return Usage{1, 2};
}

TEST_CASE("a request gets its choices, at once or as they come") {
  const auto server = Serve(Count);
  CHECK(absl::StrContains(Post(*server, R"({"prompt": "a", "n": 2})"),
                          R"("index":1,"text":"1!","logprobs":null,"finish_reason":"stop")"));
  const std::string events = Post(
      *server, R"({"messages": [], "stream": true, "stream_options": {"include_usage": true}})",
      200, "/v1/chat/completions");
  // The first piece, the last one and the usage; the empty one shows nothing.
  CHECK(absl::StrContains(events, "Content-Type: text/event-stream"));
  CHECK(absl::StrContains(events, R"("delta":{"role":"assistant","content":"0"})"));
  CHECK(absl::StrContains(events,
                          R"("delta":{"content":"!"},"logprobs":null,"finish_reason":"stop")"));
  CHECK_FALSE(absl::StrContains(events, R"("delta":{"content":""})"));
  CHECK(absl::StrContains(events, R"("total_tokens":3)"));
  CHECK(absl::StrContains(events, "data: [DONE]\n\n"));
  CHECK(absl::StrContains(
      Ask(*server, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
      R"("id":"tiny")"));
}

TEST_CASE("errors come as OpenAI's clients read them") {
  const auto server =
      Serve([](const CompletionRequest&, ShowPiece, GoesOn) -> absl::StatusOr<Usage> {
        return absl::InvalidArgumentError("too long");
      });
  CHECK(absl::StrContains(Post(*server, R"({"prompt": "a"})", 400),
                          R"({"error":{"message":"too long")"));
  CHECK(absl::StrContains(Post(*server, "{", 400), R"({"error":)"));
  CHECK(absl::StrContains(Post(*server, "{}", 404, "/v1/embeddings"), "and nothing else"));
  CHECK(absl::StrContains(Post(*server, R"({"prompt": "a", "stream": true})", 400), "too long"));
  CHECK(absl::StartsWith(Ask(*server, "no HTTP\r\n\r\n"), "HTTP/1.1 400"));
}

TEST_CASE("an answer to HEAD has no body, which would be taken for the next answer") {
  const auto server = Serve(Count);
  const std::string answer =
      Ask(*server, "HEAD /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  CHECK(absl::StartsWith(answer, "HTTP/1.1 404 "));
  CHECK(absl::EndsWith(answer, "\r\n\r\n"));
}

TEST_CASE("an error behind the first piece is an event") {
  const auto server =
      Serve([](const CompletionRequest&, ShowPiece show, GoesOn) -> absl::StatusOr<Usage> {
        show(0, {"a", ""});
        return absl::InternalError("broken");
      });
  const std::string answer = Post(*server, R"({"prompt": "a", "stream": true})");
  CHECK(absl::StrContains(answer, R"(data: {"error":{"message":"broken")"));
  CHECK_FALSE(absl::StrContains(answer, "[DONE]"));
}

// Says something until nobody wants it, and why that is. Where the answer is not streamed nothing
// is said, as while a long prompt is read.
absl::StatusOr<Usage> Talk(const CompletionRequest& request, ShowPiece show, GoesOn goes_on) {
  absl::Status status;
  while (status.ok()) {
    if (request.streams) show(0, {"x", ""});
    status = goes_on();
  }
  return status;
}

TEST_CASE("a client that goes ends its answer, and the next one gets its own") {
  for (const auto& [streams, resets] : {std::pair{true, false}, {false, false}, {false, true}}) {
    INFO(streams << resets);
    std::string why;
    std::atomic<bool> begins = false;
    auto server = Serve([&](const CompletionRequest& request, ShowPiece show, GoesOn goes_on) {
      if (request.max_tokens != 7) return Count(request, show, goes_on);
      begins = true;
      begins.notify_all();
      const absl::StatusOr<Usage> usage = Talk(request, show, goes_on);
      why = std::string(usage.status().message());
      return usage;
    });
    {
      const char* const body = streams ? R"({"prompt": "a", "max_tokens": 7, "stream": true})"
                                       : R"({"prompt": "a", "max_tokens": 7})";
      Client client(*server, PostText(body, "/v1/completions"));
      if (streams) CHECK(absl::StrContains(client.Read(), "200 OK"));
      begins.wait(false);
      if (resets) client.Reset();
    }
    CHECK(absl::StrContains(Post(*server, R"({"prompt": "a"})"), R"("text":"0!")"));
    server.reset();
    CHECK(why == "the client has gone");
  }
}

TEST_CASE("a client that gives up while it waits has no place, and costs nothing") {
  int answers = 0;
  auto server = Serve([&](const CompletionRequest& request, ShowPiece show, GoesOn goes_on) {
    ++answers;
    return request.streams ? Talk(request, show, goes_on) : Count(request, show, goes_on);
  });
  const auto hears_all = [&] {
    Ask(*server, "GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  };
  const std::string request = PostText(R"({"prompt": "a"})", "/v1/completions");
  std::optional<Client> talker(std::in_place, *server,
                               PostText(R"({"prompt": "a", "stream": true})", "/v1/completions"));
  CHECK(absl::StrContains(talker->Read(), "200 OK"));
  {
    std::vector<std::unique_ptr<Client>> waiting;
    for (int i = 0; i < 64; ++i) waiting.push_back(std::make_unique<Client>(*server, request));
    hears_all();
    CHECK(absl::StrContains(Post(*server, R"({"prompt": "a"})", 503), "64 requests wait already"));
  }
  hears_all();
  Client last(*server, request);
  // This one is heard before the talker ends, and goes before its turn comes.
  std::optional<Client> goes(std::in_place, *server, request);
  hears_all();
  goes.reset();
  hears_all();
  talker.reset();
  CHECK(absl::StrContains(last.Read(), "200 OK"));
  CHECK(absl::StrContains(Post(*server, R"({"prompt": "a"})"), R"("text":"0!")"));
  server.reset();
  CHECK(answers == 3);
}

TEST_CASE("a server that goes ends the request that runs") {
  auto server = Serve(Talk);
  Client client(*server, PostText(R"({"prompt": "a", "stream": true})", "/v1/completions"));
  std::string answer = client.Read();
  server.reset();
  for (std::string more = client.Read(); !more.empty(); more = client.Read()) answer += more;
  CHECK(absl::StrContains(answer, "the server stops"));
}

TEST_CASE("an address that cannot be had is told") {
  CHECK_STATUS(CompletionServer::Start("203.0.113.1", 0, "tiny", Count),
               absl::StatusCode::kUnavailable, "cannot listen at 203.0.113.1:0");
  // No server is asked for a name with a space.
  CHECK_STATUS(CompletionServer::Start("no host", 0, "tiny", Count), absl::StatusCode::kUnavailable,
               "cannot listen at no host: Name or service not known");
  const auto server = Serve(Count);
  CHECK_STATUS(CompletionServer::Start("127.0.0.1", server->port(), "tiny", Count),
               absl::StatusCode::kUnavailable, "another program has the port");
}

}  // namespace
}  // namespace convene::worker
