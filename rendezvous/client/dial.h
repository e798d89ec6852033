// A TCP connection to the daemon, and a gRPC channel over it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/client/endpoint.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

struct Connection {
  UniqueFd socket;     // for gRPC
  UniqueFd transport;  // a second descriptor of the TCP connection; may be invalid
};

// Resolves and connects, again and again with back-off, while there is time until `deadline`; an
// endpoint that is dialled once, once. Each address of a name gets its share of the time. Where the
// endpoint is locked, TLS is up. InvalidArgument when its address is not "host:port"; Unavailable
// with the last cause when time is over; PermissionDenied at once when the daemon has another join
// token.
absl::StatusOr<Connection> Dial(const Endpoint& endpoint, MonotonicTime deadline);

// The payload of Dial's status, if its last try was refused at every address: the start of that
// try, in nanoseconds of the monotonic clock.
inline constexpr char kRefusedAt[] = "convene/refused_at";

// A daemon that acknowledges nothing for so long is gone, for a call that carries log lines.
inline constexpr absl::Duration kLogSilence = absl::Seconds(20);

// A channel that lives and dies with this one connection: no resolver, no proxy, no reconnecting
// behind our back. `silence`: the kernel gives up a peer that acknowledges no sent byte for so
// long.
std::shared_ptr<grpc::Channel> ChannelOver(Connection connection, absl::Duration silence);

}  // namespace convene::rendezvous
