// Finds the address of this machine that other machines should use.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace convene::worker {

// The numeric address from which this machine would talk to `host`, and by which the host's network
// can reach this machine. For "localhost" it is a loopback address. Sends nothing. InvalidArgument
// when `host` cannot be resolved; Unavailable when there is no route to it.
absl::StatusOr<std::string> LocalAddressToward(const std::string& host);

}  // namespace convene::worker
