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

// The start of Dial's last try, by its status, if that try was refused at every address.
std::optional<MonotonicTime> DialRefusedAt(const absl::Status& dialed);

// A channel that lives and dies with this one connection: no resolver, no proxy, no reconnecting
// behind our back. `silence`: the kernel gives up a peer that acknowledges no sent byte for so
// long.
std::shared_ptr<grpc::Channel> ChannelOver(UniqueFd socket, absl::Duration silence);

}  // namespace convene::rendezvous
