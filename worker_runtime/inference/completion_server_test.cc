#include "worker_runtime/inference/completion_server.h"

#include <httplib.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

// Serves while it lives.
class Served {
 public:
  explicit Served(AnswerRequest answer) {
    auto server = CompletionServer::Listen("127.0.0.1", 0, "tiny", std::move(answer));
    REQUIRE_OK(server.status());
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->Run(); });
  }
  ~Served() {
    server_->Stop();
    thread_.join();
  }
  CompletionServer& server() { return *server_; }
  httplib::Client Client() const { return httplib::Client("127.0.0.1", server_->port()); }

 private:
  std::unique_ptr<CompletionServer> server_;
  std::thread thread_;
};

// Each choice says its number, and then its end.
absl::StatusOr<Usage> Count(const CompletionRequest& request, ShowPiece show) {
  for (int i = 0; i < request.choices; ++i) {
    for (const Choice& piece :
         {Choice{std::to_string(i), ""}, Choice{"", ""}, Choice{"!", "stop"}}) {
      const absl::Status status = show(i, piece);
      if (!status.ok()) return status;
    }
  }
  return Usage{1, 2};
}

std::string Post(const Served& served, const std::string& body, int status = 200,
                 const char* path = "/v1/completions") {
  httplib::Client client = served.Client();
  const auto answer = client.Post(path, body, "application/json");
  REQUIRE(answer);
  CHECK(answer->status == status);
  return answer->body;
}

TEST_CASE("a request gets its choices, at once or as they come") {
  const Served served(Count);
  CHECK(absl::StrContains(Post(served, R"({"prompt": "a", "n": 2})"),
                          R"("index":1,"text":"1!","logprobs":null,"finish_reason":"stop")"));
  const std::string events =
      Post(served, R"({"messages": [], "stream": true, "stream_options": {"include_usage": true}})",
           200, "/v1/chat/completions");
  // The first piece, the last one and the usage; the empty one shows nothing.
  CHECK(absl::StrContains(events, R"("delta":{"role":"assistant","content":"0"})"));
  CHECK(absl::StrContains(events,
                          R"("delta":{"content":"!"},"logprobs":null,"finish_reason":"stop")"));
  CHECK_FALSE(absl::StrContains(events, R"("delta":{"content":""})"));
  CHECK(absl::StrContains(events, R"("total_tokens":3)"));
  CHECK(absl::EndsWith(events, "data: [DONE]\n\n"));
  httplib::Client client = served.Client();
  CHECK(absl::StrContains(client.Get("/v1/models")->body, R"("id":"tiny")"));
}

TEST_CASE("errors come as OpenAI's clients read them") {
  const Served served([](const CompletionRequest&, ShowPiece) -> absl::StatusOr<Usage> {
    return absl::InvalidArgumentError("too long");
  });
  CHECK(absl::StrContains(Post(served, R"({"prompt": "a"})", 400),
                          R"({"error":{"message":"too long")"));
  CHECK(absl::StrContains(Post(served, "{", 400), R"({"error":)"));
  CHECK(absl::StrContains(Post(served, "{}", 404, "/v1/embeddings"), "POST /v1/embeddings is not"));
  const std::string streamed = Post(served, R"({"prompt": "a", "stream": true})");
  CHECK(absl::StrContains(streamed, R"(data: {"error":{"message":"too long")"));
  CHECK_FALSE(absl::StrContains(streamed, "[DONE]"));
}

TEST_CASE("a server that stops ends the request that runs, and Run returns") {
  CompletionServer* server = nullptr;
  Served served([&server](const CompletionRequest&, ShowPiece show) -> absl::StatusOr<Usage> {
    server->Stop();
    absl::Status status;
    while (status.ok()) status = show(0, {"x", ""});
    return status;
  });
  server = &served.server();
  CHECK(absl::StrContains(Post(served, R"({"prompt": "a"})", 503), "the server stops"));
}

TEST_CASE("a port that is taken is told") {
  const Served served(Count);
  CHECK_STATUS(CompletionServer::Listen("203.0.113.1", 0, "tiny", Count),
               absl::StatusCode::kUnavailable, "cannot listen at 203.0.113.1:0");
}

}  // namespace
}  // namespace convene::worker
