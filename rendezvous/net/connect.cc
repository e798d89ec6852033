#include "rendezvous/net/connect.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/time/time.h"
#include "rendezvous/net/peer_address.h"
#include "tools/base/host_port.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

// TCP_RTO_MAX_MS, since Linux 6.15: not in Debian 12's headers. A second is the least it takes.
constexpr int kRtoMaxMs = 44;
constexpr int kLongestRetransmitMs = 1000;
// The longest segment that, with its headers, fits into every IPv6 path.
constexpr int kLongestSegmentBytes = 1280 - 60;

// These options only make connections faster and cleaner, so a kernel that refuses one is no error.
void SetOption(int fd, int level, int option, int value) {
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

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

absl::Status PrepareConnection(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, "cannot make a connection non-blocking");
  }
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> ConnectTo(const ResolvedAddress& address, MonotonicTime deadline,
                                   Segments segments) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (segments == Segments::kShort) {
    SetOption(fd.get(), IPPROTO_TCP, TCP_MAXSEG, kLongestSegmentBytes);
  }
  CONVENE_RETURN_IF_ERROR(PrepareConnection(fd.get()));
  if (connect(fd.get(), address.get(), address.length) != 0) {
    if (errno != EINPROGRESS) return ErrnoStatus(errno, "connect");
    CONVENE_RETURN_IF_ERROR(Annotate(AwaitReady(fd.get(), POLLOUT, deadline), "connect"));
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    // ECONNRESET comes of an established connection: nobody there would be ECONNREFUSED.
    if (error != 0 && error != ECONNRESET) return ErrnoStatus(error, "connect");
  }
  return fd;
}

void RetransmitSteadily(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);  // the first six
  SetOption(fd, IPPROTO_TCP, kRtoMaxMs, kLongestRetransmitMs);
}

std::string PeerName(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (getpeername(fd, generic, &length) != 0) return "a client";
  return FormatHostPort(AddressText(generic), PortOf(generic));
}

std::string OtherHost(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return AddressText(reinterpret_cast<sockaddr*>(&address));
}

std::string OwnHost(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "";
  return AddressText(reinterpret_cast<sockaddr*>(&address));
}

bool IsOfThisMachine(int fd) {
  const std::string from = OtherHost(fd);
  return IsLoopback(from) || from == OwnHost(fd);
}

std::string OtherMachine(int fd) { return IsOfThisMachine(fd) ? "this machine" : OtherHost(fd); }

}  // namespace convene::rendezvous
