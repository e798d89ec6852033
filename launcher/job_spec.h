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

// The devices of this machine that flags may refer to.
struct Machine {
  std::string host_name;
  int cpus = 1;
  int gpus = 0;
  int xpus = 0;  // Intel's
};

struct JobSpec {
  // Complete but for `command` and, unless `standalone`, for `may_host` and `store_host`, which
  // need the disk and the network.
  agent::AgentOptions options;
  // The job has only this node: the endpoint is "127.0.0.1:0", any free port of this machine.
  bool standalone = false;
  // The place is --master-addr's: workers get the host of the endpoint as it is written.
  bool is_static = false;
  std::optional<bool> is_host;            // by --rdzv-conf is_host, or by the rank of a static job
  std::optional<std::string> local_addr;  // --local-addr
  std::vector<std::string> reasons;       // each choice that no flag made, for the log
};

// InvalidArgument for every value out of range and every pair that contradicts each other; the text
// names the flag, the value and the right form. `random_id` names a standalone job.
absl::StatusOr<JobSpec> MakeJobSpec(const RunFlags& flags, const EnvironmentLookup& environment,
                                    const Machine& machine, const std::string& random_id);

}  // namespace convene::launcher
