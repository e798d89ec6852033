// Which of this machine's addresses others should use.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace convene::worker {

// The address, in numbers, from which this machine would talk to `host`: where that host lives,
// this machine can be reached. For "localhost" it is a loopback address. Sends nothing.
// InvalidArgument when `host` cannot be resolved; Unavailable when there is no route to it.
absl::StatusOr<std::string> LocalAddressToward(const std::string& host);

}  // namespace convene::worker
