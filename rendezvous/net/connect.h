// TCP connections with a deadline.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Waits until `fd` is ready for `events` (of poll). DeadlineExceeded when it is not ready at
// `deadline` on the real clock; an answer that is there counts even later, as the calling thread
// may not have run for a while.
absl::Status AwaitReady(int fd, short events, MonotonicTime deadline);

// kShort: packets that fit into every path, both ways. A path that silently drops longer packets (a
// tunnel, and a firewall that drops ICMP) would carry heartbeats, but no message of a failure.
enum class Segments { kAsUsual, kShort };

// Makes a connection's socket non-blocking, lets it send at once (TCP_NODELAY), and lets it notice
// a dead peer in the end.
absl::Status PrepareConnection(int fd);

// A connected, close-on-exec socket, prepared as above. It makes one try: DeadlineExceeded, or the
// system's error of `socket` or `connect`. A connection that the other side reset at once is one as
// well: its reader finds the end.
absl::StatusOr<UniqueFd> ConnectTo(const ResolvedAddress& address, MonotonicTime deadline,
                                   Segments segments = Segments::kAsUsual);

// Makes the kernel, as far as it can, send lost packets again at a steady pace, where TCP would
// wait twice as long each time. So bytes that wait during a short cut arrive within a second after
// it, before a lease ends.
void RetransmitSteadily(int fd);

// "[::1]:4711": the connection's other end, for logs.
std::string PeerName(int fd);

// The other end's address, without the port; "" when it is not known.
std::string OtherHost(int fd);

// This end's address, without the port, by which the other end's machine finds this one; "" when it
// is not known.
std::string OwnHost(int fd);

// Whether the other end is on this machine: it came over loopback, or to the address that it came
// from.
bool IsOfThisMachine(int fd);

// OtherHost, and one text for all the addresses by which this machine reaches itself.
std::string OtherMachine(int fd);

}  // namespace convene::rendezvous
