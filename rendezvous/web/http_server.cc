#include "rendezvous/web/http_server.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/net/epoll.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr int kEventsPerWait = 64;
constexpr size_t kReadBytes = 4096;
// The most bytes that may wait behind a request that is being answered.
constexpr size_t kMostHeldInput = kLongestHttpHead;
// The time for which a connection that was told its end may go on sending: closing at once would
// take the answer back from a client that has not read it.
constexpr absl::Duration kFarewell = absl::Seconds(2);

constexpr uint64_t kDoorbellEvent = 0;
constexpr uint64_t kFirstConnection = 1;

const char* ReasonOf(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Bad Request";
  }
}

//   reading --a whole request--> sending --all sent, keep-alive--> reading
//      '------- a bad one ----------^  '----- all sent, the last --> leaving
enum class Phase { kReading, kSending, kLeaving };

struct Connection {
  uint64_t id = 0;
  UniqueFd fd;
  Phase phase = Phase::kReading;
  MonotonicTime deadline;
  HttpRequestReader reader;
  std::string held_input;  // requests behind the one being answered
  bool is_last = false;    // the answer under way
  std::string head;        // of the answer
  std::shared_ptr<const std::string> body;
  size_t sent = 0;  // of head and body together

  size_t answer_size() const { return head.size() + (body == nullptr ? 0 : body->size()); }
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const Options& options, Handler handler, UniqueFd epoll, UniqueFd doorbell)
      : options_(options),
        handler_(std::move(handler)),
        epoll_(std::move(epoll)),
        doorbell_(std::move(doorbell)) {}

  ~HttpServerImpl() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    RingDoorbell();
    thread_.Join();
  }

  absl::Status Begin() {
    CONVENE_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, doorbell_.get(), EPOLLIN, kDoorbellEvent));
    CONVENE_ASSIGN_OR_RETURN(thread_, Thread::Start("http", [this] { Loop(); }));
    return absl::OkStatus();
  }

  void Adopt(UniqueFd socket) override {
    {
      MutexLock lock(&mutex_);
      adopted_.push_back(std::move(socket));
    }
    RingDoorbell();
  }

 private:
  using Connections = std::unordered_map<uint64_t, std::unique_ptr<Connection>>;

  void RingDoorbell() {
    const uint64_t one = 1;
    CONVENE_CHECK(write(doorbell_.get(), &one, sizeof(one)) == sizeof(one));
  }

  absl::Status Watch(int operation, int fd, uint32_t events, uint64_t id) {
    return WatchInEpoll(epoll_.get(), operation, fd, events, id, "the HTTP server");
  }

  void Loop() {
    epoll_event events[kEventsPerWait];
    for (;;) {
      const int count = epoll_wait(epoll_.get(), events, kEventsPerWait, MsUntilNextDeadline());
      CONVENE_CHECK(count >= 0 || errno == EINTR);
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[i].data.u64;  // A copy: the struct is packed.
        if (id == kDoorbellEvent) {
          if (!AnswerDoorbell()) return;
          continue;
        }
        const auto found = connections_.find(id);
        if (found != connections_.end() && !Attend(found->second.get())) connections_.erase(found);
      }
      EndLate();
    }
  }

  // Returns false when the server ends.
  bool AnswerDoorbell() {
    uint64_t rings = 0;
    CONVENE_CHECK(read(doorbell_.get(), &rings, sizeof(rings)) == sizeof(rings));
    std::vector<UniqueFd> adopted;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return false;
      adopted.swap(adopted_);
    }
    for (UniqueFd& fd : adopted) Welcome(std::move(fd));
    return true;
  }

  // There are few connections: looking at all of them costs less than keeping them in order.
  Connections::iterator NextToEnd() {
    return std::min_element(
        connections_.begin(), connections_.end(),
        [](const auto& a, const auto& b) { return a.second->deadline < b.second->deadline; });
  }

  int MsUntilNextDeadline() {
    if (connections_.empty()) return -1;
    const absl::Duration left =
        std::max(NextToEnd()->second->deadline - Clock::Real().Now(), absl::ZeroDuration());
    return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
  }

  void EndLate() {
    const MonotonicTime now = Clock::Real().Now();
    while (!connections_.empty()) {
      const auto next = NextToEnd();
      if (next->second->deadline > now) return;
      connections_.erase(next);
    }
  }

  void Welcome(UniqueFd fd) {
    if (connections_.size() >= options_.most_connections) connections_.erase(NextToEnd());
    auto connection = std::make_unique<Connection>();
    connection->id = next_id_++;
    connection->fd = std::move(fd);
    connection->deadline = Clock::Real().Now() + options_.head_timeout;
    // The first event also tells of bytes that came earlier.
    const absl::Status watched =
        Watch(EPOLL_CTL_ADD, connection->fd.get(), EPOLLIN, connection->id);
    if (!watched.ok()) {
      spdlog::error("the HTTP server drops a connection: {}", std::string(watched.message()));
      return;
    }
    const uint64_t id = connection->id;
    connections_.emplace(id, std::move(connection));
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
        HttpResponse refusal;
        refusal.code = connection->reader.refusal();
        refusal.body = std::make_shared<const std::string>(
            absl::StrCat(refusal.code, " ", ReasonOf(refusal.code), "\n"));
        return Answer(connection, refusal, false, true);
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
    connection->head = absl::StrCat(
        "HTTP/1.1 ", response.code, " ", ReasonOf(response.code),
        "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body->size(),
        response.code == 405 ? "\r\nAllow: GET, HEAD" : "",
        "\r\nCache-Control: no-store\r\nConnection: ", is_last ? "close" : "keep-alive",
        "\r\n\r\n");
    connection->body = is_head ? nullptr : response.body;
    connection->sent = 0;
    connection->is_last = is_last;
    connection->phase = Phase::kSending;
    connection->deadline = Clock::Real().Now() + options_.send_timeout;
    // Nothing is read before this answer is sent, so a client that does not take its answers cannot
    // pile them up.
    return Rewatch(connection, EPOLLOUT);
  }

  bool Rewatch(Connection* connection, uint32_t events) {
    return Watch(EPOLL_CTL_MOD, connection->fd.get(), events, connection->id).ok();
  }

  bool Send(Connection* connection) {
    const std::string& head = connection->head;
    const size_t sent = connection->sent;
    iovec parts[2];
    int count = 0;
    if (sent < head.size()) {
      parts[count++] = {const_cast<char*>(head.data()) + sent, head.size() - sent};
    }
    if (connection->body != nullptr && !connection->body->empty()) {
      const size_t of_body = sent < head.size() ? 0 : sent - head.size();
      parts[count++] = {const_cast<char*>(connection->body->data()) + of_body,
                        connection->body->size() - of_body};
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t now_sent = sendmsg(connection->fd.get(), &message, MSG_NOSIGNAL);
    if (now_sent < 0) return errno == EAGAIN;
    connection->sent += static_cast<size_t>(now_sent);
    if (connection->sent < connection->answer_size()) {
      connection->deadline = Clock::Real().Now() + options_.send_timeout;
      return true;
    }
    return FinishAnswer(connection);
  }

  bool FinishAnswer(Connection* connection) {
    connection->body.reset();
    if (connection->is_last) {
      shutdown(connection->fd.get(), SHUT_WR);
      connection->phase = Phase::kLeaving;
      connection->deadline = Clock::Real().Now() + kFarewell;
      return Rewatch(connection, EPOLLIN);
    }
    connection->phase = Phase::kReading;
    connection->deadline = Clock::Real().Now() + options_.idle_timeout;
    if (!Rewatch(connection, EPOLLIN)) return false;
    const std::string held = std::exchange(connection->held_input, "");
    return held.empty() || Proceed(connection, held);
  }

  // Constant after Begin().
  const Options options_;
  const Handler handler_;
  const UniqueFd epoll_;
  const UniqueFd doorbell_;  // rung when there is news under the mutex

  Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<UniqueFd> adopted_ ABSL_GUARDED_BY(mutex_);  // not yet welcomed

  // Used by the thread alone.
  Connections connections_;
  uint64_t next_id_ = kFirstConnection;

  Thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              Handler handler) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create of the HTTP server");
  UniqueFd doorbell(eventfd(0, EFD_CLOEXEC));
  if (!doorbell.valid()) return ErrnoStatus(errno, "eventfd of the HTTP server");
  auto server = std::make_unique<HttpServerImpl>(options, std::move(handler), std::move(epoll),
                                                 std::move(doorbell));
  CONVENE_RETURN_IF_ERROR(server->Begin());
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace convene::rendezvous
