#include "rendezvous/server/front.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rendezvous/net/acceptor.h"
#include "rendezvous/net/complaints.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/listen.h"
#include "tools/base/clock.h"
#include "tools/base/doorbell.h"
#include "tools/base/event_loop.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr absl::string_view kHttp2Preface = "PRI ";
// TLS's own word for a client that does not speak it: fatal, unexpected_message.
constexpr absl::string_view kTlsAlert("\x15\x03\x03\x00\x02\x02\x0A", 7);
constexpr absl::string_view kHttpAnswer =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    "This daemon has a join token or certificates: ask by https://\n";

class FrontImpl final : public Front {
 public:
  FrontImpl(const Options& options, int port) : options_(options), port_(port) {}

  ~FrontImpl() override {
    {
      MutexLock lock(&mutex_);
      is_ending_ = true;
    }
    doorbell_.Ring();
    thread_.Join();
  }

  absl::Status Begin(UniqueFd listener) {
    CONVENE_RETURN_IF_ERROR(doorbell_.Attach(loop_, [this] { TakeAdopted(); }));
    CONVENE_ASSIGN_OR_RETURN(acceptor_,
                             Acceptor::Start(loop_, std::move(listener), "the rendezvous",
                                             [this](UniqueFd fd) { Greet(std::move(fd)); }));
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Adopt(UniqueFd plain, Origin origin) override {
    {
      MutexLock lock(&mutex_);
      adopted_.emplace_back(std::move(plain), origin);
    }
    doorbell_.Ring();
  }

  absl::Status Serve(Handlers handlers) override {
    handlers_ = std::move(handlers);
    CONVENE_ASSIGN_OR_RETURN(thread_, Thread::Start("front", [this] { Loop(); }));
    return absl::OkStatus();
  }

 private:
  // A connection that has not said what it speaks.
  struct Stranger {
    UniqueFd fd;
    Origin origin;
    MonotonicTime deadline;
  };
  // In the order of age, and so of deadline.
  using Strangers = std::map<uint64_t, Stranger>;

  void Loop() {
    while (!ends_) {
      loop_.RunOnce(strangers_.empty() ? MonotonicTime::InfiniteFuture()
                                       : strangers_.begin()->second.deadline);
      EndSilent();
    }
  }

  void TakeAdopted() {
    std::vector<std::pair<UniqueFd, Origin>> adopted;
    {
      MutexLock lock(&mutex_);
      adopted.swap(adopted_);
      ends_ = is_ending_;
    }
    if (ends_) return;
    for (auto& [fd, origin] : adopted) Meet(std::move(fd), origin);
  }

  void EndSilent() {
    if (strangers_.empty()) return;
    const MonotonicTime now = Clock::Real().Now();
    while (!strangers_.empty() && strangers_.begin()->second.deadline <= now) {
      EndOldest(absl::StrCat("it did not say in ", absl::FormatDuration(options_.silence),
                             " what it speaks"));
    }
  }

  void Greet(UniqueFd fd) {
    const int on = 1;
    (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Meet(std::move(fd), Origin::kPlain);
  }

  void Meet(UniqueFd fd, Origin origin) {
    // A client that dialled a moment ago has mostly sent bytes by now.
    if (TryPassOn(&fd, origin)) return;
    if (strangers_.size() >= options_.most_undecided) {
      EndOldest(absl::StrCat("more than ", options_.most_undecided,
                             " connections have not said what they speak, and it is the oldest"));
    }
    const uint64_t id = next_id_++;
    // Edge-triggered: bytes that were seen and did not suffice are still there.
    const absl::Status watched =
        loop_.Add(fd.get(), EPOLLIN | EPOLLRDHUP | EPOLLET,
                  [this, id](uint32_t events) { Look(strangers_.find(id), events); });
    if (!watched.ok()) return complaints_.Warn(Clock::Real().Now(), watched.message());
    strangers_.emplace(id, Stranger{std::move(fd), origin, Clock::Real().Now() + options_.silence});
  }

  void Look(Strangers::iterator stranger, uint32_t events) {
    const bool is_known = TryPassOn(&stranger->second.fd, stranger->second.origin);
    // A connection that its client has closed says no more.
    if (is_known || (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) End(stranger);
  }

  // Returns false when more bytes are needed. Else the connection has gone to its server, or is
  // closed.
  bool TryPassOn(UniqueFd* fd, Origin origin) {
    char bytes[4];
    const ssize_t count = recv(fd->get(), bytes, sizeof(bytes), MSG_PEEK);
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) {
      loop_.Forget(fd->get());
      fd->Reset();
      return true;
    }
    const absl::string_view seen(bytes, static_cast<size_t>(count));
    const Protocol protocol = ProtocolOf(seen);
    if (protocol == Protocol::kUndecided) return false;
    loop_.Forget(fd->get());  // it is not watched at all when it spoke at once
    if (const std::string why = WhyRefused(protocol, origin, options_.is_locked); !why.empty()) {
      // An agent without a token learns from it that a daemon is here. A proxy in front of a daemon
      // that does not listen yet closes connections without a word, and the agent waits.
      if (origin == Origin::kPlain) SayLocked(fd->get(), protocol);
      Refuse(std::move(*fd), seen, why);
      return true;
    }
    switch (protocol) {
      case Protocol::kGrpc:
        handlers_.grpc(std::move(*fd));
        break;
      case Protocol::kStore:
        handlers_.store(std::move(*fd));
        break;
      case Protocol::kHttp:
        handlers_.http(std::move(*fd), origin);
        break;
      case Protocol::kTls:
        handlers_.tls(std::move(*fd));
        break;
      case Protocol::kUnknown:
      case Protocol::kUndecided:
        break;
    }
    return true;
  }

  static void SayLocked(int fd, Protocol protocol) {
    const absl::string_view words = protocol == Protocol::kGrpc   ? kTlsAlert
                                    : protocol == Protocol::kHttp ? kHttpAnswer
                                                                  : "";
    if (words.empty()) return;
    // A close with bytes unread may take the words away from the client.
    char unread[4096];
    (void)!recv(fd, unread, sizeof(unread), MSG_DONTWAIT);
    (void)!send(fd, words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void Refuse(UniqueFd fd, absl::string_view seen, const std::string& why) {
    complaints_.Warn(
        Clock::Real().Now(),
        absl::StrFormat("the rendezvous closes the connection of %s, which begins with 0x%02x: %s",
                        PeerName(fd.get()), static_cast<uint8_t>(seen[0]), why));
  }

  // REQUIRES: there is a connection to end.
  void EndOldest(const std::string& why) {
    const auto oldest = strangers_.begin();
    complaints_.Warn(Clock::Real().Now(),
                     absl::StrCat("the rendezvous closes the connection of ",
                                  PeerName(oldest->second.fd.get()), ": ", why));
    End(oldest);
  }

  void End(Strangers::iterator stranger) {
    loop_.Forget(stranger->second.fd.get());
    strangers_.erase(stranger);
  }

  // Constant once Serve() was called.
  const Options options_;
  const int port_;
  const Doorbell doorbell_;  // rung when the front ends
  Handlers handlers_;
  // Of the thread alone.
  EventLoop loop_;
  std::unique_ptr<Acceptor> acceptor_;
  Strangers strangers_;
  uint64_t next_id_ = 0;
  bool ends_ = false;
  Complaints complaints_;

  Mutex mutex_;
  std::vector<std::pair<UniqueFd, Origin>> adopted_ ABSL_GUARDED_BY(mutex_);
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;

  Thread thread_;
};

}  // namespace

Protocol ProtocolOf(absl::string_view first_bytes) {
  if (first_bytes.empty()) return Protocol::kUndecided;
  if (first_bytes[0] == '\0') return Protocol::kStore;
  if (first_bytes[0] == '\x16') return Protocol::kTls;
  if (absl::StartsWith(first_bytes, kHttp2Preface)) return Protocol::kGrpc;
  if (absl::StartsWith(kHttp2Preface, first_bytes)) return Protocol::kUndecided;
  return absl::ascii_isalpha(static_cast<unsigned char>(first_bytes[0])) ? Protocol::kHttp
                                                                         : Protocol::kUnknown;
}

std::string WhyRefused(Protocol protocol, Origin origin, bool is_locked) {
  if (protocol == Protocol::kUnknown) return "it is none of gRPC, TCPStore and HTTP";
  if (origin == Origin::kPlain) {
    if (protocol == Protocol::kTls && !is_locked)
      return "it is TLS, and this daemon has neither a join token nor certificates";
    const bool passes = !is_locked || protocol == Protocol::kTls || protocol == Protocol::kStore;
    return passes ? ""
                  : "this daemon has a join token or certificates, and the client did not come "
                    "with one";
  }
  return protocol == Protocol::kHttp ? ""
                                     : "a client within TLS that is no member gets the page alone";
}

absl::StatusOr<std::unique_ptr<Front>> Front::Listen(const Options& options) {
  CONVENE_ASSIGN_OR_RETURN(Listener listener, ListenOn(options.host, options.port));
  auto front = std::make_unique<FrontImpl>(options, listener.port);
  CONVENE_RETURN_IF_ERROR(Annotate(front->Begin(std::move(listener.fd)), "the rendezvous port"));
  return std::unique_ptr<Front>(std::move(front));
}

}  // namespace convene::rendezvous
