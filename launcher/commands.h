// The subcommands: each runs to its end and returns the process's exit code by
// tools/base/exit_code.h. A bad status is a failure before anything was started; main() prints it.
#pragma once

#include "absl/status/statusor.h"
#include "launcher/flags.h"

namespace convene::launcher {

// This node's part of a job, until the job is over here. Blocks the signals it is told to handle.
// REQUIRES: no other thread runs.
absl::StatusOr<int> RunCommand(const RunFlags& flags);
// The rendezvous daemon, until one of those signals.
// REQUIRES: SIGTERM, SIGINT, SIGHUP and SIGQUIT are blocked in every thread.
absl::StatusOr<int> ServeCommand(const ServeFlags& flags);
// Prints the jobs of a rendezvous to stdout.
absl::StatusOr<int> StatusCommand(const StatusFlags& flags);
// Prints what the workers of a run print, to stdout. Signals end it as they end any program.
absl::StatusOr<int> LogsCommand(const LogsFlags& flags);

}  // namespace convene::launcher
