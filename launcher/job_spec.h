// PURE. Flags and environment to one validated value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/options.h"
#include "launcher/flags.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// What the flags may refer to on this machine.
struct Machine {
  std::string host_name;
  int cpus = 1;
  int gpus = 0;
  int xpus = 0;  // Intel's
};

struct JobSpec {
  // All but `command`, and, unless `standalone`, all but `may_host` and `store_host`: those need
  // the disk and the network.
  agent::AgentOptions options;
  // One node that nobody else joins: the endpoint is "127.0.0.1:0", any free port of this machine.
  bool standalone = false;
  // The place is --master-addr's: workers are told the host of the endpoint, as it is written.
  bool is_static = false;
  std::optional<bool> is_host;            // by --rdzv-conf is_host, or by the rank of a static job
  std::optional<std::string> local_addr;  // --local-addr
  std::vector<std::string> reasons;       // each choice that no flag made, for the log
};

// InvalidArgument for every value out of range and every pair that contradicts each other; the text
// names the flag, the value and what to write instead. `random_id` names a standalone job.
absl::StatusOr<JobSpec> MakeJobSpec(const RunFlags& flags, const EnvironmentLookup& environment,
                                    const Machine& machine, const std::string& random_id);

}  // namespace convene::launcher
