#include "rendezvous/net/connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/time/time.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// TCP_RTO_MAX_MS, since Linux 6.15: not in Debian 12's headers. A second is the least it takes.
constexpr int kRtoMaxMs = 44;
constexpr int kLongestRetransmitMs = 1000;
// The longest segment that, with its headers, fits into every IPv6 path.
constexpr int kLongestSegmentBytes = 1280 - 60;

}  // namespace

absl::Status AwaitReady(int fd, short events, MonotonicTime deadline) {
  for (;;) {
    const absl::Duration left = std::max(deadline - Clock::Real().Now(), absl::ZeroDuration());
    // Rounded up: a wait of 0 ms would spin.
    const int64_t wait_ms = std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 1 << 30);
    pollfd entry = {fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(wait_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    if (left == absl::ZeroDuration()) return absl::DeadlineExceededError("no answer in time");
  }
}

absl::StatusOr<UniqueFd> ConnectTo(const ResolvedAddress& address, MonotonicTime deadline,
                                   Segments segments) {
  UniqueFd fd(socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (segments == Segments::kShort) {
    (void)setsockopt(fd.get(), IPPROTO_TCP, TCP_MAXSEG, &kLongestSegmentBytes, sizeof(int));
  }
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

void RetransmitSteadily(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof(on));  // the first six
  (void)setsockopt(fd, IPPROTO_TCP, kRtoMaxMs, &kLongestRetransmitMs, sizeof(int));
}

std::string OwnHost(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return AddressText(reinterpret_cast<sockaddr*>(&address));
}

}  // namespace convene::rendezvous
