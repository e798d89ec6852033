#include "rendezvous/web/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/net/send_queue.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/doorbell.h"
#include "tools/base/event_loop.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kReadBytes = 4096;
// The most bytes that may wait behind a request that is being answered.
constexpr size_t kMostHeldInput = kLongestHttpHead;
// The time for which a connection that was told its end may go on sending: closing at once would
// take the answer back from a client that has not read it.
constexpr absl::Duration kFarewell = absl::Seconds(2);

const char* ReasonOf(int code) { return http_status_str(static_cast<http_status>(code)); }

//   reading --a whole request--> sending --all sent, keep-alive--> reading
//      '------- a bad one ----------^  '----- all sent, the last --> leaving
enum class Phase { kReading, kSending, kLeaving };

struct Connection {
  UniqueFd fd;
  Phase phase = Phase::kReading;
  MonotonicTime deadline;
  HttpRequestReader reader;
  std::string held_input;  // requests behind the one being answered
  bool is_last = false;    // the answer under way
  SendQueue answer;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const Options& options, Handler handler)
      : options_(options), handler_(std::move(handler)) {}

  ~HttpServerImpl() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    doorbell_.Ring();
    thread_.Join();
  }

  absl::Status Begin() {
    CONVENE_RETURN_IF_ERROR(doorbell_.Attach(loop_, [this] { AnswerDoorbell(); }));
    CONVENE_ASSIGN_OR_RETURN(thread_, Thread::Start("http", [this] { Loop(); }));
    return absl::OkStatus();
  }

  void Adopt(UniqueFd socket) override {
    {
      MutexLock lock(&mutex_);
      adopted_.push_back(std::move(socket));
    }
    doorbell_.Ring();
  }

 private:
  using Connections = std::unordered_map<int, std::unique_ptr<Connection>>;  // by descriptor

  void Loop() {
    while (!ends_) {
      loop_.RunOnce(NextDeadline());
      EndLate();
    }
  }

  void AnswerDoorbell() {
    std::vector<UniqueFd> adopted;
    {
      MutexLock lock(&mutex_);
      ends_ = stopping_;
      adopted.swap(adopted_);
    }
    for (UniqueFd& fd : adopted) Welcome(std::move(fd));
  }

  // There are few connections: looking at all of them costs less than keeping them in order.
  Connections::iterator NextToEnd() {
    return std::min_element(
        connections_.begin(), connections_.end(),
        [](const auto& a, const auto& b) { return a.second->deadline < b.second->deadline; });
  }

  MonotonicTime NextDeadline() {
    return connections_.empty() ? MonotonicTime::InfiniteFuture() : NextToEnd()->second->deadline;
  }

  void EndLate() {
    const MonotonicTime now = Clock::Real().Now();
    while (NextDeadline() <= now) End(NextToEnd());
  }

  void End(Connections::iterator connection) {
    loop_.Forget(connection->first);
    connections_.erase(connection);
  }

  void Welcome(UniqueFd fd) {
    if (connections_.size() >= options_.most_connections) End(NextToEnd());
    const int key = fd.get();
    auto connection = std::make_unique<Connection>();
    connection->fd = std::move(fd);
    connection->deadline = Clock::Real().Now() + options_.head_timeout;
    // Bytes that came before are told of by the first event.
    const absl::Status watched = loop_.Add(key, EPOLLIN, [this, key](uint32_t) {
      const auto found = connections_.find(key);
      if (!Attend(found->second.get())) End(found);
    });
    if (!watched.ok()) {
      spdlog::error("the HTTP server drops a connection: {}", std::string(watched.message()));
      return;
    }
    connections_.emplace(key, std::move(connection));
  }

  // Each of these functions returns false when the connection has to be closed.
  bool Attend(Connection* connection) {
    return connection->phase == Phase::kSending ? Send(connection) : Receive(connection);
  }

  bool Receive(Connection* connection) {
    char bytes[kReadBytes];
    const ssize_t count = recv(connection->fd.get(), bytes, sizeof(bytes), 0);
    if (count < 0) return errno == EAGAIN;
    if (count == 0) return false;
    if (connection->phase == Phase::kLeaving) return true;  // unheard
    return Proceed(connection, absl::string_view(bytes, static_cast<size_t>(count)));
  }

  // Answers the first request in `input`, and keeps the rest for later.
  bool Proceed(Connection* connection, absl::string_view input) {
    const bool had_begun = connection->reader.has_begun();
    const auto outcome = connection->reader.Read(&input);
    switch (outcome) {
      case HttpRequestReader::Outcome::kNeedsMore:
        if (!had_begun) connection->deadline = Clock::Real().Now() + options_.head_timeout;
        return true;
      case HttpRequestReader::Outcome::kRefused: {
        const int code = connection->reader.refusal();
        const std::string body = absl::StrCat(code, " ", ReasonOf(code), "\n");
        return Answer(connection, {.code = code, .body = std::make_shared<const std::string>(body)},
                      false, true);
      }
      case HttpRequestReader::Outcome::kWhole:
        break;
    }
    if (input.size() > kMostHeldInput) return false;
    connection->held_input.assign(input.data(), input.size());
    const HttpRequest& request = connection->reader.request();
    return Answer(connection, handler_(request), request.is_head, !request.keeps_alive);
  }

  bool Answer(Connection* connection, const HttpResponse& response, bool is_head, bool is_last) {
    // A 304 has no body, and its length would be that of the 200 (RFC 9110, 8.6).
    const std::string length =
        response.code == 304 ? "" : absl::StrCat("\r\nContent-Length: ", response.body->size());
    connection->answer.Append(absl::StrCat(
        "HTTP/1.1 ", response.code, " ", ReasonOf(response.code), "\r\nContent-Type: ",
        response.content_type, length, response.code == 405 ? "\r\nAllow: GET, HEAD" : "",
        "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: ",
        is_last ? "close" : "keep-alive", "\r\n", response.headers, "\r\n"));
    if (!is_head) connection->answer.Append(response.body);
    connection->is_last = is_last;
    connection->phase = Phase::kSending;
    connection->deadline = Clock::Real().Now() + options_.send_timeout;
    // Nothing is read before this is sent: a client that does not take its answers cannot make
    // more of them.
    loop_.Change(connection->fd.get(), EPOLLOUT);
    return true;
  }

  bool Send(Connection* connection) {
    const size_t before = connection->answer.bytes();
    if (!connection->answer.SendTo(connection->fd.get())) return false;
    if (!connection->answer.empty()) {
      if (connection->answer.bytes() < before) {
        connection->deadline = Clock::Real().Now() + options_.send_timeout;
      }
      return true;
    }
    return FinishAnswer(connection);
  }

  bool FinishAnswer(Connection* connection) {
    if (connection->is_last) {
      shutdown(connection->fd.get(), SHUT_WR);
      connection->phase = Phase::kLeaving;
      connection->deadline = Clock::Real().Now() + kFarewell;
      loop_.Change(connection->fd.get(), EPOLLIN);
      return true;
    }
    connection->phase = Phase::kReading;
    connection->deadline = Clock::Real().Now() + options_.idle_timeout;
    loop_.Change(connection->fd.get(), EPOLLIN);
    const std::string held = std::exchange(connection->held_input, "");
    return held.empty() || Proceed(connection, held);
  }

  // Constant after Begin().
  const Options options_;
  const Handler handler_;
  const Doorbell doorbell_;  // rung when there is news under the mutex

  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<UniqueFd> adopted_ ABSL_GUARDED_BY(mutex_);  // not yet welcomed

  // Of the thread alone.
  EventLoop loop_;
  Connections connections_;
  bool ends_ = false;

  Thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              Handler handler) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(handler));
  CONVENE_RETURN_IF_ERROR(server->Begin());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace convene::rendezvous
