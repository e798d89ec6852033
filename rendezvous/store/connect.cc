#include "rendezvous/store/connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/time.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::Status AwaitReady(int fd, short events, MonotonicTime deadline) {
  for (;;) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("no answer in time");
    // Rounded up: a wait of 0 ms would spin.
    const int64_t wait_ms = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1 << 30);
    pollfd entry = {fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(wait_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  }
}

absl::StatusOr<UniqueFd> ConnectTo(const ResolvedAddress& address, MonotonicTime deadline) {
  UniqueFd fd(socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (connect(fd.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return ErrnoStatus(errno, "connect");
    CONVENE_RETURN_IF_ERROR(Annotate(AwaitReady(fd.get(), POLLOUT, deadline), "connect"));
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return ErrnoStatus(error, "connect");
  }
  const int one = 1;
  (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

}  // namespace convene::rendezvous
