// PURE. The flags about workers' output to the agent's log options.
#pragma once

#include "absl/status/statusor.h"
#include "agent/options.h"
#include "launcher/flags.h"

namespace convene::launcher {

// Where torchrun and `convene run` differ:
//                       convene run                     torchrun
//   --log-dir alone     every worker's output, as -t 3  only error.json
//   filters alone       as with -t 3                    without effect
//   prefix              "[${rank}] ", on every line     "[${role_name}${local_rank}]:", on teed
//                                                       lines
// InvalidArgument with the flag and the right form.
absl::StatusOr<agent::LogOptions> MakeLogOptions(const RunFlags& flags);

}  // namespace convene::launcher
