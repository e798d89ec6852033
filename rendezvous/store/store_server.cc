#include "rendezvous/store/store_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/store/conversation.h"
#include "rendezvous/store/outbox.h"
#include "rendezvous/store/table.h"
#include "rendezvous/store/wire.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

// A connection that does not read its answers is not read from either while this much waits for it.
constexpr size_t kOutboxBytesMax = 1 << 20;
constexpr size_t kReadBytes = 256 << 10;
constexpr int kAcceptsPerEvent = 64;
constexpr int kEventsPerWait = 256;
// How long no connection is accepted after the process ran out of descriptors or memory.
constexpr int kAcceptPauseMs = 100;

// What epoll tells us about; connections count up from kFirstConnection.
constexpr ConnectionId kStopEvent = 0;
constexpr ConnectionId kListenerEvent = 1;
constexpr ConnectionId kFirstConnection = 2;

struct Connection {
  UniqueFd fd;
  Conversation conversation;
  RequestParser parser;
  Outbox outbox;
  std::string held_input;  // received, but not to be looked at before the outbox has drained
  uint32_t interest = EPOLLIN;
};

std::string PeerName(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "a client";
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET6) {
    const auto& ip6 = reinterpret_cast<const sockaddr_in6&>(address);
    inet_ntop(AF_INET6, &ip6.sin6_addr, text, sizeof(text));
    return absl::StrCat("[", text, "]:", ntohs(ip6.sin6_port));
  }
  const auto& ip4 = reinterpret_cast<const sockaddr_in&>(address);
  inet_ntop(AF_INET, &ip4.sin_addr, text, sizeof(text));
  return absl::StrCat(text, ":", ntohs(ip4.sin_port));
}

void SetOption(int fd, int level, int option, int value) {
  // Only speed and hygiene hang on these options: a kernel that refuses one still serves.
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

absl::Status BindAndListen(int fd, const sockaddr* address, socklen_t length, int port) {
  SetOption(fd, SOL_SOCKET, SO_REUSEADDR, 1);  // over connections in TIME_WAIT, not over a listener
  if (bind(fd, address, length) != 0) {
    return ErrnoStatus(errno, absl::StrCat("the store cannot bind port ", port));
  }
  // The kernel cuts the backlog to net.core.somaxconn.
  if (listen(fd, INT_MAX) != 0) {
    return ErrnoStatus(errno, absl::StrCat("the store cannot listen on port ", port));
  }
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Listen(int port) {
  constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  UniqueFd fd(socket(AF_INET6, kType, 0));
  if (fd.valid()) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    const absl::Status bound =
        BindAndListen(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any), port);
    if (bound.ok()) return fd;
    if (absl::IsAlreadyExists(bound) || absl::IsPermissionDenied(bound)) return bound;
  }
  // No IPv6 here.
  fd.Reset(socket(AF_INET, kType, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "the store cannot open a socket");
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  CONVENE_RETURN_IF_ERROR(
      BindAndListen(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any), port));
  return fd;
}

absl::StatusOr<int> BoundPort(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return ErrnoStatus(errno, "the store cannot read its own address");
  }
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

class StoreServerImpl : public StoreServer {
 public:
  StoreServerImpl(UniqueFd listener, UniqueFd epoll, UniqueFd stop, int port)
      : listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        stop_(std::move(stop)),
        port_(port) {}

  ~StoreServerImpl() override {
    const uint64_t one = 1;
    CONVENE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.Join();
  }

  absl::Status Begin() {
    CONVENE_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, stop_.get(), EPOLLIN, kStopEvent));
    CONVENE_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, listener_.get(), EPOLLIN, kListenerEvent));
    scratch_.resize(kReadBytes);
    thread_ = Thread("store", [this] { Loop(); });
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  absl::Status Watch(int operation, int fd, uint32_t events, ConnectionId id) {
    epoll_event event = {};
    event.events = events;
    event.data.u64 = id;
    if (epoll_ctl(epoll_.get(), operation, fd, &event) == 0) return absl::OkStatus();
    return ErrnoStatus(errno, "epoll_ctl of the store");
  }

  void Loop() {
    epoll_event events[kEventsPerWait];
    for (;;) {
      const int count =
          epoll_wait(epoll_.get(), events, kEventsPerWait, accept_paused_ ? kAcceptPauseMs : -1);
      CONVENE_CHECK(count >= 0 || errno == EINTR);
      if (accept_paused_) SetAcceptPaused(false);
      for (int i = 0; i < count; ++i) {
        const ConnectionId id = events[i].data.u64;
        if (id == kStopEvent) return;
        if (id == kListenerEvent) {
          Accept();
        } else if (Connection* connection = Find(id)) {
          Serve(connection, events[i].events);
        }
      }
    }
  }

  // nullptr when it was closed meanwhile.
  Connection* Find(ConnectionId id) {
    const auto found = connections_.find(id);
    return found == connections_.end() ? nullptr : found->second.get();
  }

  void SetAcceptPaused(bool paused) {
    accept_paused_ = paused;
    CONVENE_CHECK(
        Watch(EPOLL_CTL_MOD, listener_.get(), paused ? 0u : EPOLLIN, kListenerEvent).ok());
  }

  void Accept() {
    for (int i = 0; i < kAcceptsPerEvent; ++i) {
      UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          if (!std::exchange(told_of_exhaustion_, true)) {
            spdlog::error("the store cannot accept connections: {}; raise `ulimit -n`",
                          strerror(errno));
          }
          SetAcceptPaused(true);
        }
        return;
      }
      SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
      SetOption(fd.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
      auto connection = std::make_unique<Connection>();
      connection->fd = std::move(fd);
      connection->conversation.id = next_id_++;
      const absl::Status watched = Watch(EPOLL_CTL_ADD, connection->fd.get(), connection->interest,
                                         connection->conversation.id);
      if (!watched.ok()) {
        spdlog::error("the store drops a new connection: {}", watched.ToString());
        continue;
      }
      connections_.emplace(connection->conversation.id, std::move(connection));
    }
  }

  void Serve(Connection* connection, uint32_t events) {
    const ConnectionId id = connection->conversation.id;
    if (events & EPOLLOUT) {
      Flush(connection);
      if (!connection->held_input.empty() && connection->outbox.bytes() < kOutboxBytesMax) {
        const std::string input = std::exchange(connection->held_input, "");
        Process(connection, input);
        if (Find(id) == nullptr) return;
      }
    }
    if (connection->interest & EPOLLIN) {
      if (events & ~EPOLLOUT) Read(connection);
    } else if (events & (EPOLLHUP | EPOLLERR)) {
      Close(connection, absl::OkStatus());  // it will never take the answers that hold it up
    }
  }

  void Read(Connection* connection) {
    const ssize_t count = recv(connection->fd.get(), scratch_.data(), scratch_.size(), 0);
    if (count > 0) {
      Process(connection, absl::string_view(scratch_.data(), static_cast<size_t>(count)));
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      Close(connection, absl::OkStatus());
    }
  }

  // Answers the requests in `input`; may close the connection.
  void Process(Connection* connection, absl::string_view input) {
    while (!input.empty()) {
      if (connection->outbox.bytes() >= kOutboxBytesMax) {
        Flush(connection);
        if (connection->outbox.bytes() >= kOutboxBytesMax) {
          connection->held_input.assign(input.data(), input.size());
          break;
        }
      }
      const absl::StatusOr<bool> complete = connection->parser.Next(&input);
      if (!complete.ok()) return Close(connection, complete.status());
      if (!*complete) break;
      const absl::Status answered = Answer(connection->parser.request(), &connection->conversation,
                                           &table_, &connection->outbox, &woken_);
      WakeAll(connection);
      if (!answered.ok()) return Close(connection, answered);
    }
    Flush(connection);
  }

  // `current`, if any, is flushed by the caller.
  void WakeAll(const Connection* current) {
    for (const ConnectionId id : woken_) {
      Connection* const connection = Find(id);
      CONVENE_CHECK(connection != nullptr);
      AnswerWoken(&connection->outbox);
      if (connection != current) Flush(connection);
    }
    woken_.clear();
  }

  // Sends what the socket takes, and asks for the events that the state calls for. A broken
  // connection stays: its event comes next.
  void Flush(Connection* connection) {
    while (!connection->outbox.empty()) {
      iovec vectors[64];
      msghdr message = {};
      message.msg_iov = vectors;
      message.msg_iovlen = static_cast<size_t>(connection->outbox.Peek(vectors, 64));
      const ssize_t sent = sendmsg(connection->fd.get(), &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) break;
      connection->outbox.Consume(static_cast<size_t>(sent));
    }
    // Held input waits for room in the outbox, which this very call may have made.
    const bool held = !connection->held_input.empty();
    uint32_t interest = held ? 0u : EPOLLIN;
    if (held || !connection->outbox.empty()) interest |= EPOLLOUT;
    if (interest == connection->interest) return;
    connection->interest = interest;
    CONVENE_CHECK(
        Watch(EPOLL_CTL_MOD, connection->fd.get(), interest, connection->conversation.id).ok());
  }

  // Not OK: the peer broke the protocol.
  void Close(Connection* connection, const absl::Status& breach) {
    if (!breach.ok()) {
      spdlog::warn("the store closes the connection of {}: {}", PeerName(connection->fd.get()),
                   std::string(breach.message()));
    }
    Depart(connection->conversation, &table_, &woken_);
    connections_.erase(connection->conversation.id);
    WakeAll(nullptr);
  }

  // Constant after Begin().
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd stop_;
  const int port_;
  // Of the thread alone.
  Table table_;
  absl::flat_hash_map<ConnectionId, std::unique_ptr<Connection>> connections_;
  ConnectionId next_id_ = kFirstConnection;
  std::string scratch_;
  Table::Woken woken_;
  bool accept_paused_ = false;
  bool told_of_exhaustion_ = false;

  Thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(const Options& options) {
  CONVENE_ASSIGN_OR_RETURN(UniqueFd listener, Listen(options.port));
  CONVENE_ASSIGN_OR_RETURN(const int port, BoundPort(listener.get()));
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create of the store");
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "eventfd of the store");
  auto server = std::make_unique<StoreServerImpl>(std::move(listener), std::move(epoll),
                                                  std::move(stop), port);
  CONVENE_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace convene::rendezvous
