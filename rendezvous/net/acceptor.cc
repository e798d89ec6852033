#include "rendezvous/net/acceptor.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
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
// The journal's files, a worker's pipes, the threads of a server that starts for its first client.
constexpr rlim_t kKeptFiles = 32;
constexpr rlim_t kKeptPart = 8;  // of few files

// Whether `fd` is among the last descriptors of this process. The kernel gives the lowest number
// that is free, so all lower ones are in use then.
bool IsKept(int fd) {
  rlimit files = {};
  (void)getrlimit(RLIMIT_NOFILE, &files);
  const rlim_t kept = std::min(kKeptFiles, files.rlim_cur / kKeptPart);
  return static_cast<rlim_t>(fd) >= files.rlim_cur - kept;
}

}  // namespace

Acceptor::Acceptor(EventLoop& loop, UniqueFd listener, std::string whose,
                   std::function<void(UniqueFd)> on_connection)
    : loop_(loop),
      listener_(std::move(listener)),
      whose_(std::move(whose)),
      on_connection_(std::move(on_connection)),
      pause_(loop, [this] {
        loop_.Change(listener_.get(), EPOLLIN);
        if (held_.valid()) Accept();
      }) {}

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
    UniqueFd fd = Next();
    if (fd.valid()) {
      on_connection_(std::move(fd));
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) Pause(errno);
    // Another failure concerns one connection: epoll tells when there is another.
    return;
  }
}

// Invalid with an errno when there is none, or none may be taken.
UniqueFd Acceptor::Next() {
  UniqueFd fd(held_.valid()
                  ? fcntl(held_.get(), F_DUPFD_CLOEXEC, 0)
                  : accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return fd;
  if (!IsKept(fd.get())) {
    held_.Reset();
    return fd;
  }
  if (!held_.valid()) held_ = std::move(fd);
  errno = EMFILE;
  return UniqueFd();
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
