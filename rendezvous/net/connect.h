// TCP connections with a deadline.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Until `fd` is ready for `events` (of poll). DeadlineExceeded when that takes until `deadline` on
// the real clock.
absl::Status AwaitReady(int fd, short events, MonotonicTime deadline);

// kShort: packets that no path is too narrow for, both ways. A path that swallows longer ones
// without a word (a tunnel, and a firewall that drops ICMP) would carry heartbeats, but no failure.
enum class Segments { kAsUsual, kShort };

// A connected, non-blocking, close-on-exec socket that sends at once (TCP_NODELAY). One try:
// DeadlineExceeded, or what the system says of `socket` or `connect`.
absl::StatusOr<UniqueFd> ConnectTo(const ResolvedAddress& address, MonotonicTime deadline,
                                   Segments segments = Segments::kAsUsual);

// Sends lost packets again at a steady pace, where TCP would wait twice as long each time: after a
// cut that was short, what waited arrives within a second, before a lease ends. As far as the
// kernel can.
void RetransmitSteadily(int fd);

// This end's address, without the port: where the other end's machine finds this one. "" when that
// is not known.
std::string OwnHost(int fd);

}  // namespace convene::rendezvous
