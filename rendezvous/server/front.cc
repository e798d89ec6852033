#include "rendezvous/server/front.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rendezvous/net/accepted.h"
#include "rendezvous/net/epoll.h"
#include "rendezvous/net/listen.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr absl::string_view kHttp2Preface = "PRI ";
constexpr int kAcceptsPerEvent = 64;
constexpr int kEventsPerWait = 256;
// How long no connection is accepted after the process ran out of descriptors or memory.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// Connections without a known protocol must not fill the log.
constexpr absl::Duration kLogInterval = absl::Seconds(1);

// The identities of epoll's events; connections count up from kFirstConnection.
constexpr uint64_t kStopEvent = 0;
constexpr uint64_t kListenerEvent = 1;
constexpr uint64_t kFirstConnection = 2;

class FrontImpl final : public Front {
 public:
  FrontImpl(const Options& options, Listener listener, UniqueFd epoll, UniqueFd stop)
      : options_(options),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        stop_(std::move(stop)) {}

  ~FrontImpl() override {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    CONVENE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.Join();
  }

  absl::Status Begin() {
    CONVENE_RETURN_IF_ERROR(Watch(EPOLL_CTL_ADD, stop_.get(), EPOLLIN, kStopEvent));
    return Watch(EPOLL_CTL_ADD, listener_.fd.get(), EPOLLIN, kListenerEvent);
  }

  int port() const override { return listener_.port; }

  void Serve(Handlers handlers) override {
    handlers_ = std::move(handlers);
    thread_ = Thread("front", [this] { Loop(); });
  }

 private:
  // A connection that has not said what it speaks.
  struct Stranger {
    UniqueFd fd;
    MonotonicTime deadline;
  };
  // In the order of age, and so of deadline.
  using Strangers = std::map<uint64_t, Stranger>;

  absl::Status Watch(int operation, int fd, uint32_t events, uint64_t id) {
    return WatchInEpoll(epoll_.get(), operation, fd, events, id, "the rendezvous port");
  }

  void Loop() {
    epoll_event events[kEventsPerWait];
    for (;;) {
      const int count = epoll_wait(epoll_.get(), events, kEventsPerWait, MsUntilNextDeadline());
      CONVENE_CHECK(count >= 0 || errno == EINTR);
      for (int i = 0; i < count; ++i) {
        const uint64_t id = events[i].data.u64;
        if (id == kStopEvent) return;
        if (id == kListenerEvent) {
          Accept();
        } else {
          Look(strangers_.find(id), events[i].events);
        }
      }
      KeepDeadlines();
    }
  }

  int MsUntilNextDeadline() const {
    MonotonicTime next = accept_again_at_;
    if (!strangers_.empty()) next = std::min(next, strangers_.begin()->second.deadline);
    if (next == MonotonicTime::InfiniteFuture()) return -1;
    const absl::Duration left = std::max(next - Clock::Real().Now(), absl::ZeroDuration());
    return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
  }

  void KeepDeadlines() {
    if (strangers_.empty() && accept_again_at_ == MonotonicTime::InfiniteFuture()) return;
    const MonotonicTime now = Clock::Real().Now();
    while (!strangers_.empty() && strangers_.begin()->second.deadline <= now) {
      EndOldest(absl::StrCat("it did not say in ", absl::FormatDuration(options_.silence),
                             " what it speaks"));
    }
    if (accept_again_at_ <= now) {
      accept_again_at_ = MonotonicTime::InfiniteFuture();
      CONVENE_CHECK(Watch(EPOLL_CTL_MOD, listener_.fd.get(), EPOLLIN, kListenerEvent).ok());
    }
  }

  void Accept() {
    for (int i = 0; i < kAcceptsPerEvent; ++i) {
      UniqueFd fd(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd.valid()) {
        Greet(std::move(fd));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) PauseAccept();
      // Any other error concerns one connection only: epoll tells when there is another.
      return;
    }
  }

  void PauseAccept() {
    Complain(absl::StrCat("the rendezvous cannot accept connections: ", strerror(errno),
                          "; raise `ulimit -n`"));
    accept_again_at_ = Clock::Real().Now() + kAcceptPause;
    CONVENE_CHECK(Watch(EPOLL_CTL_MOD, listener_.fd.get(), 0u, kListenerEvent).ok());
  }

  void Greet(UniqueFd fd) {
    const int on = 1;
    (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // A client that dialled a moment ago has mostly sent bytes by now.
    if (TryPassOn(&fd)) return;
    if (strangers_.size() >= options_.most_undecided) {
      EndOldest(absl::StrCat("more than ", options_.most_undecided,
                             " connections have not said what they speak, and it is the oldest"));
    }
    const uint64_t id = next_id_++;
    // Edge-triggered, because bytes that were seen and did not suffice are still there.
    const absl::Status watched = Watch(EPOLL_CTL_ADD, fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET, id);
    if (!watched.ok()) return Complain(std::string(watched.message()));
    strangers_.emplace(id, Stranger{std::move(fd), Clock::Real().Now() + options_.silence});
  }

  void Look(Strangers::iterator stranger, uint32_t events) {
    if (stranger == strangers_.end()) return;  // ended meanwhile
    const bool is_known = TryPassOn(&stranger->second.fd);
    // A connection that its client has closed sends no more bytes.
    if (is_known || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) strangers_.erase(stranger);
  }

  // Returns false when more bytes are needed. Else the connection has gone to its server, or is
  // closed.
  bool TryPassOn(UniqueFd* fd) {
    char bytes[4];
    const ssize_t count = recv(fd->get(), bytes, sizeof(bytes), MSG_PEEK);
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) {
      fd->Reset();
      return true;
    }
    const absl::string_view seen(bytes, static_cast<size_t>(count));
    const Protocol protocol = ProtocolOf(seen);
    if (protocol == Protocol::kUndecided) return false;
    // The front no longer watches the connection. (A connection that sent bytes at once was never
    // watched.)
    (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd->get(), nullptr);
    switch (protocol) {
      case Protocol::kGrpc:
        handlers_.grpc(std::move(*fd));
        break;
      case Protocol::kStore:
        handlers_.store(std::move(*fd));
        break;
      case Protocol::kHttp:
        handlers_.http(std::move(*fd));
        break;
      case Protocol::kUnknown:
      case Protocol::kUndecided:
        Refuse(std::move(*fd), seen);
        break;
    }
    return true;
  }

  void Refuse(UniqueFd fd, absl::string_view seen) {
    const uint8_t first = static_cast<uint8_t>(seen[0]);
    Complain(absl::StrFormat(
        "the rendezvous closes the connection of %s: it begins with 0x%02x%s, which is none of "
        "gRPC, TCPStore and HTTP",
        PeerName(fd.get()), first, first == 0x16 ? " (TLS)" : ""));
  }

  // REQUIRES: there is a connection to end.
  void EndOldest(const std::string& why) {
    const auto oldest = strangers_.begin();
    Complain(absl::StrCat("the rendezvous closes the connection of ",
                          PeerName(oldest->second.fd.get()), ": ", why));
    strangers_.erase(oldest);
  }

  void Complain(const std::string& text) {
    const MonotonicTime now = Clock::Real().Now();
    if (now < complains_again_at_) {
      ++unsaid_;
      return;
    }
    complains_again_at_ = now + kLogInterval;
    const int64_t unsaid = std::exchange(unsaid_, 0);
    spdlog::warn("{}{}", text, unsaid == 0 ? "" : absl::StrCat(" (", unsaid, " more like it)"));
  }

  // Constant once Serve() was called.
  const Options options_;
  const Listener listener_;
  const UniqueFd epoll_;
  const UniqueFd stop_;
  Handlers handlers_;
  // Used by the thread alone.
  Strangers strangers_;
  uint64_t next_id_ = kFirstConnection;
  MonotonicTime accept_again_at_ = MonotonicTime::InfiniteFuture();
  MonotonicTime complains_again_at_;
  int64_t unsaid_ = 0;

  Thread thread_;
};

}  // namespace

Protocol ProtocolOf(absl::string_view first_bytes) {
  if (first_bytes.empty()) return Protocol::kUndecided;
  if (first_bytes[0] == '\0') return Protocol::kStore;
  if (absl::StartsWith(first_bytes, kHttp2Preface)) return Protocol::kGrpc;
  if (absl::StartsWith(kHttp2Preface, first_bytes)) return Protocol::kUndecided;
  return absl::ascii_isalpha(static_cast<unsigned char>(first_bytes[0])) ? Protocol::kHttp
                                                                         : Protocol::kUnknown;
}

absl::StatusOr<std::unique_ptr<Front>> Front::Listen(const Options& options) {
  CONVENE_ASSIGN_OR_RETURN(Listener listener, ListenOn(options.host, options.port));
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoStatus(errno, "epoll_create of the rendezvous port");
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return ErrnoStatus(errno, "eventfd of the rendezvous port");
  auto front =
      std::make_unique<FrontImpl>(options, std::move(listener), std::move(epoll), std::move(stop));
  CONVENE_RETURN_IF_ERROR(front->Begin());
  return std::unique_ptr<Front>(std::move(front));
}

}  // namespace convene::rendezvous
