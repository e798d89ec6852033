// `convene launch`: one agent on each host, over ssh.
#pragma once

#include "absl/status/statusor.h"
#include "launcher/launch/launch_flags.h"

namespace convene::launcher {

// Runs the job to its end; the answer is the exit code. Call it from the main thread, with no other
// thread running. Signals that end a process ask the agents to stop; a second Ctrl-C, at least a
// second after the first, kills everything. InvalidArgument and NotFound: nothing was started.
absl::StatusOr<int> LaunchCommand(const LaunchFlags& flags);

}  // namespace convene::launcher
