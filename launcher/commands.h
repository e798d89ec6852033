// The commands of this binary: each runs to its end, as an Action of launcher/command_table.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/command_table.h"
#include "launcher/flags.h"

namespace convene::launcher {

// Runs this node's part of a job, until the job is over here. Blocks the signals that the flags
// name. REQUIRES: no other thread runs.
absl::StatusOr<int> RunCommand(const RunFlags& flags);
// Prints the jobs of a rendezvous to stdout.
absl::StatusOr<int> StatusCommand(const StatusFlags& flags);
// Prints the output of a run's workers to stdout. Signals end it as they end any program.
absl::StatusOr<int> LogsCommand(const LogsFlags& flags);

inline constexpr char kTorchrun[] = "torchrun";

// The table. `name`: the one by which the binary was called. kTorchrun is `convene run` with
// torchrun's rules, "convened" is `convene serve`, any other name has all commands.
Program ProgramCalled(const std::string& name);

}  // namespace convene::launcher
