// The subcommands: each runs to its end and returns the process's exit code by
// tools/base/exit_code.h. A bad status is a failure before anything was started; main() prints it.
#pragma once

#include "absl/status/statusor.h"
#include "launcher/flags.h"

namespace convene::launcher {

// REQUIRES (all): SIGTERM, SIGINT, SIGHUP and SIGQUIT are blocked in every thread.

// This node's part of a job, until the job is over here.
absl::StatusOr<int> RunCommand(const RunFlags& flags);
// The rendezvous daemon, until one of the signals above.
absl::StatusOr<int> ServeCommand(const ServeFlags& flags);
// Prints the jobs of a rendezvous to stdout.
absl::StatusOr<int> StatusCommand(const StatusFlags& flags);

}  // namespace convene::launcher
