// `convene launched`: the other end of `convene launch`, on each host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace convene::launcher {

// Reads a HostTask from stdin and calls `run` with its arguments in a child of this process, in the
// task's directory and with its variables. Passes requests from stdin on to that child as signals.
// The end of stdin, or its silence for the task's link timeout, is a request to stop. Returns the
// child's exit code, and in the child `run`'s. InvalidArgument: stdin has no task, or there is no
// such directory. REQUIRES: no other thread runs.
absl::StatusOr<int> LaunchedCommand(
    const std::function<absl::StatusOr<int>(const std::vector<std::string>& arguments)>& run);

}  // namespace convene::launcher
