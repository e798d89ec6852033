#include "worker_runtime/inference/completion_server.h"

#include <httplib.h>

#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Requests that are read or wait; more wait in the kernel's list of connections.
constexpr size_t kThreads = 32;
constexpr size_t kLargestRequest = 16 << 20;
constexpr time_t kPatienceSeconds = 30;  // for a client that sends or takes nothing
constexpr char kJson[] = "application/json";

}  // namespace

class CompletionServer::Handlers {
 public:
  Handlers(std::string model, AnswerRequest answer)
      : model_(std::move(model)),
        created_(absl::ToUnixSeconds(absl::Now())),
        answer_(std::move(answer)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_payload_max_length(kLargestRequest);
    server_.set_read_timeout(kPatienceSeconds);
    server_.set_write_timeout(kPatienceSeconds);
    server_.set_tcp_nodelay(true);
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(ModelsJson(model_, created_), kJson);
    });
    server_.Post("/v1/completions", [this](const auto& request, httplib::Response& response) {
      Answer(request.body, /*is_chat=*/false, response);
    });
    server_.Post("/v1/chat/completions", [this](const auto& request, httplib::Response& response) {
      Answer(request.body, /*is_chat=*/true, response);
    });
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      const int status = response.status;
      Fail(absl::NotFoundError(
               absl::StrCat(request.method, " ", request.path,
                            " is not served: GET /v1/models, POST /v1/completions and POST "
                            "/v1/chat/completions are")),
           response);
      if (status != 404) response.status = status;
    });
  }

  httplib::Server& server() { return server_; }
  void Run() {
    has_begun_ = true;
    if (!is_stopping_) server_.listen_after_bind();
    has_ended_ = true;
  }
  void Stop() {
    is_stopping_ = true;
    if (!has_begun_) return;
    // The library forgets a stop that comes before its loop runs.
    while (!server_.is_running() && !has_ended_) Clock::Real().SleepFor(absl::Milliseconds(1));
    server_.stop();
  }

 private:
  static void Fail(const absl::Status& error, httplib::Response& response) {
    response.status = HttpStatusOf(error);
    response.set_content(ErrorJson(error), kJson);
  }

  absl::Status CheckGoesOn() const {
    return is_stopping_ ? absl::CancelledError("the server stops") : absl::OkStatus();
  }

  absl::StatusOr<Usage> AnswerInTurn(const CompletionRequest& request, ShowPiece show) {
    MutexLock lock(&mutex_);
    CONVENE_RETURN_IF_ERROR(CheckGoesOn());
    return answer_(request, show);
  }

  void Answer(const std::string& body, bool is_chat, httplib::Response& response) {
    const int64_t number = ++requests_;
    auto request = ParseCompletionRequest(body, is_chat, /*default_seed=*/number);
    if (!request.ok()) return Fail(request.status(), response);
    const AnswerHead head = {.is_chat = is_chat,
                             .id = absl::StrCat(is_chat ? "chatcmpl-" : "cmpl-", number),
                             .created = absl::ToUnixSeconds(absl::Now()),
                             .model = model_};
    if (request->streams) return Stream(head, *std::move(request), response);
    std::vector<Choice> choices(request->prompts.size() * request->choices);
    const absl::StatusOr<Usage> usage = AnswerInTurn(*request, [&](int index, const Choice& piece) {
      choices[index].text += piece.text;
      choices[index].finish_reason = piece.finish_reason;
      return CheckGoesOn();
    });
    if (!usage.ok()) return Fail(usage.status(), response);
    response.set_content(CompletionJson(head, choices, *usage), kJson);
  }

  // The status line is gone before the answer begins, so an error comes as an event.
  void Stream(const AnswerHead& head, CompletionRequest request, httplib::Response& response) {
    response.set_chunked_content_provider(
        "text/event-stream",
        [this, head, request = std::move(request)](size_t /*offset*/, httplib::DataSink& sink) {
          const auto send = [&](const std::string& event) {
            return sink.write(event.data(), event.size())
                       ? absl::OkStatus()
                       : absl::CancelledError("the client has gone");
          };
          std::vector<bool> has_begun(request.prompts.size() * request.choices);
          const absl::StatusOr<Usage> usage =
              AnswerInTurn(request, [&](int index, const Choice& piece) {
                CONVENE_RETURN_IF_ERROR(CheckGoesOn());
                const bool is_first = !has_begun[index];
                has_begun[index] = true;
                // Half a character, or what may become a stop text, shows nothing yet.
                if (piece.text.empty() && piece.finish_reason.empty() && !is_first) {
                  return absl::OkStatus();
                }
                return send(ChunkEvent(head, index, piece, is_first));
              });
          absl::Status status = usage.status();
          if (status.ok() && request.streams_usage) status = send(UsageEvent(head, *usage));
          if (status.ok()) status = send(kLastEvent);
          if (!status.ok()) {
            send(absl::StrCat("data: ", ErrorJson(status), "\n\n")).IgnoreError();
          }
          sink.done();
          return status.ok();
        });
  }

  const std::string model_;
  const int64_t created_;
  std::atomic<int64_t> requests_ = 0;
  std::atomic<bool> has_begun_ = false;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> is_stopping_ = false;
  Mutex mutex_;
  AnswerRequest answer_ GUARDED_BY(mutex_);
  httplib::Server server_;
};

CompletionServer::CompletionServer(std::string model, AnswerRequest answer)
    : handlers_(std::make_unique<Handlers>(std::move(model), std::move(answer))) {}

CompletionServer::~CompletionServer() = default;

absl::StatusOr<std::unique_ptr<CompletionServer>> CompletionServer::Listen(const std::string& host,
                                                                           int port,
                                                                           std::string model,
                                                                           AnswerRequest answer) {
  std::unique_ptr<CompletionServer> made(new CompletionServer(std::move(model), std::move(answer)));
  httplib::Server& server = made->handlers_->server();
  made->port_ = port > 0 && server.bind_to_port(host, port) ? port : 0;
  if (port == 0) made->port_ = server.bind_to_any_port(host);
  if (made->port_ > 0) return made;
  return absl::UnavailableError(absl::StrCat(
      "cannot listen at ", host, ":", port,
      ": another program has the port, or this machine has no such address (--serve, --host)"));
}

void CompletionServer::Run() { handlers_->Run(); }

void CompletionServer::Stop() { handlers_->Stop(); }

}  // namespace convene::worker
