// The commands of this binary: each runs to its end, as an Action of launcher/command_table.h.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/command_table.h"
#include "launcher/flags.h"

namespace convene::launcher {

// This node's part of a job, until the job is over here. Blocks the signals it is told to handle.
// REQUIRES: no other thread runs.
absl::StatusOr<int> RunCommand(const RunFlags& flags);
// Prints the jobs of a rendezvous to stdout.
absl::StatusOr<int> StatusCommand(const StatusFlags& flags);
// Prints what the workers of a run print, to stdout. Signals end it as they end any program.
absl::StatusOr<int> LogsCommand(const LogsFlags& flags);

inline constexpr char kTorchrun[] = "torchrun";

// The table. `name`: the one by which the binary was called. kTorchrun is `convene run` with
// torchrun's rules, "convened" is `convene serve`, any other name has all commands.
Program ProgramCalled(const std::string& name);

}  // namespace convene::launcher
