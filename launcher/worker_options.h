// PURE. Turns the flags about workers' lives into the agent's options: their stop, their hang
// limits, their place.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/options.h"
#include "launcher/flags.h"

namespace convene::launcher {

// Fills stop_graces, leftovers.left_alone, ending_signals, hang_limits, warm_workers and
// extra_environment, and checks the workers' other options; a line in `reasons` for each flag that
// cannot have an effect here. REQUIRES: `options` began as flags.options, and
// hello.local_world_size and hello.join_timeout are set. InvalidArgument with the flag and the
// right form.
absl::Status ApplyWorkerFlags(const RunFlags& flags, agent::AgentOptions* options,
                              std::vector<std::string>* reasons);

}  // namespace convene::launcher
