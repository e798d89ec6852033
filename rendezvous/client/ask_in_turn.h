// A question to whichever of several endpoints has the daemon that leads.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rendezvous/client/endpoint.h"

namespace convene::rendezvous {

// Calls `ask` with each of `endpoint`'s addresses and a share of `timeout`, again and again with
// back-off, until it returns something else than Unavailable and PermissionDenied, which is then
// the result: another program, or a daemon with another token, may have the address of one that
// died. Unavailable, with each address and its reason, when `timeout` is over; PermissionDenied,
// likewise, where one of them refused in the last round, and at once when all of a round do. One
// address is asked once, with the whole `timeout`. The name of a service is looked up first
// (ResolveService's errors, and its time).
absl::Status AskInTurn(
    const Endpoint& endpoint, absl::Duration timeout,
    const std::function<absl::Status(const Endpoint& each, absl::Duration share)>& ask);

}  // namespace convene::rendezvous
