#include "rendezvous/net/acceptor.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "spdlog/spdlog.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr int kAcceptsPerEvent = 64;
constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kBetweenComplaints = absl::Seconds(10);

}  // namespace

Acceptor::Acceptor(EventLoop& loop, UniqueFd listener, std::string whose,
                   std::function<void(UniqueFd)> on_connection)
    : loop_(loop),
      listener_(std::move(listener)),
      whose_(std::move(whose)),
      on_connection_(std::move(on_connection)),
      pause_(loop, [this] { loop_.Change(listener_.get(), EPOLLIN); }) {}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(
    EventLoop& loop, UniqueFd listener, std::string whose,
    std::function<void(UniqueFd)> on_connection) {
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(loop, std::move(listener), std::move(whose), std::move(on_connection)));
  if (!acceptor->pause_.valid()) {
    return absl::ResourceExhaustedError("no descriptor is left for a timer");
  }
  CONVENE_RETURN_IF_ERROR(loop.Add(acceptor->listener_.get(), EPOLLIN,
                                   [raw = acceptor.get()](uint32_t) { raw->Accept(); }));
  return acceptor;
}

Acceptor::~Acceptor() { loop_.Forget(listener_.get()); }

void Acceptor::Accept() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) {
      on_connection_(std::move(fd));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) Pause(errno);
    // Another failure concerns one connection: epoll tells when there is another.
    return;
  }
}

void Acceptor::Pause(int error) {
  loop_.Change(listener_.get(), 0);
  pause_.Set(kPause);
  const MonotonicTime now = Clock::Real().Now();
  if (now < complains_again_at_) return;
  complains_again_at_ = now + kBetweenComplaints;
  spdlog::error("{} cannot accept connections: {}; raise `ulimit -n`", whose_, strerror(error));
}

}  // namespace convene::rendezvous
