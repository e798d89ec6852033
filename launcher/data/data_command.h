// `convene data`: makes, shows, checks and converts files of training tokens.
#pragma once

#include "absl/status/statusor.h"
#include "launcher/command_table.h"
#include "launcher/data/data_flags.h"

namespace convene::launcher {

// Each prints to stdout. Errors: those of worker_runtime/data, which name the file and what to do.
absl::StatusOr<int> PrepareCommand(const PrepareFlags& flags);
absl::StatusOr<int> ShowCommand(const ShowFlags& flags);
absl::StatusOr<int> VerifyCommand(const VerifyFlags& flags);
absl::StatusOr<int> BlendCommand(const BlendFlags& flags);
absl::StatusOr<int> ConvertCommand(const ConvertFlags& flags);
absl::StatusOr<int> CacheCommand(const CacheFlags& flags);

// The row of `convene data`, with a table of commands of its own.
Command DataRow();

}  // namespace convene::launcher
