// A TCP connection to the daemon, and a gRPC channel over it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

// Resolves and connects, again and again with back-off, while there is time until `deadline`.
// InvalidArgument when `endpoint` is not "host:port"; Unavailable with the last cause when time is
// over.
absl::StatusOr<UniqueFd> Dial(const std::string& endpoint, MonotonicTime deadline);

// Of what Dial returned: when its last try began, if that was refused at every address.
std::optional<MonotonicTime> DialRefusedAt(const absl::Status& dialed);

// A channel that lives and dies with this one connection: no resolver, no proxy, no reconnecting
// behind our back. `silence`: a peer that does not acknowledge what was sent for so long is given
// up by the kernel.
std::shared_ptr<grpc::Channel> ChannelOver(UniqueFd socket, absl::Duration silence);

}  // namespace convene::rendezvous
