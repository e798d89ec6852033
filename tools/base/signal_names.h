// PURE. Signals by name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene {

// "SIGKILL", or "signal 77" for one without a name.
std::string SignalName(int signal);

// "SIGTERM,SIGUSR1" (or "TERM"; spaces and repetitions do not matter), in the order given.
// InvalidArgument for an empty list, an unknown name, and a signal that no process may handle or
// that reports a fault of the process itself.
absl::StatusOr<std::vector<int>> ParseSignals(const std::string& text);

}  // namespace convene
