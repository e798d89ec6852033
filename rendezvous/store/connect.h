// TCP connections with a deadline.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/store/resolve.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Until `fd` is ready for `events` (of poll). DeadlineExceeded when that takes until `deadline` on
// the real clock.
absl::Status AwaitReady(int fd, short events, MonotonicTime deadline);

// A connected, non-blocking, close-on-exec socket that sends at once (TCP_NODELAY). One try:
// DeadlineExceeded, or what the system says of `socket` or `connect`.
absl::StatusOr<UniqueFd> ConnectTo(const ResolvedAddress& address, MonotonicTime deadline);

}  // namespace convene::rendezvous
