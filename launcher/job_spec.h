// PURE. Flags and environment to one validated value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/options.h"
#include "launcher/cluster/detected_job.h"
#include "launcher/flags.h"
#include "launcher/meeting_place.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// The parts of this machine that flags and a scheduler's variables may refer to.
struct Machine {
  std::string host_name;
  int cpus = 1;
  int gpus = 0;
  int xpus = 0;                // Intel's
  std::string full_name = {};  // the host's name with its domain; "": /etc/hosts has none
  std::string parent = {};     // the name of the program that started this process
  int hydra_proxy = 0;         // ProcessFacts::hydra_proxy
  bool has_own_group = false;  // ProcessFacts::has_own_group
};

struct JobSpec {
  // Complete but for `command` and, unless `standalone`, for `may_host` and `store_host`, which
  // need the disk and the network.
  agent::AgentOptions options;
  // The job has only this node: the endpoint is "127.0.0.1:0", any free port of this machine.
  bool standalone = false;
  // The endpoint is a list: daemons that take turns, so this node never serves.
  bool has_standbys = false;
  // The place is --master-addr's: workers get the host of the endpoint as it is written.
  bool is_static = false;
  // The nodes start minutes apart, and a node's name may appear after its start (Kubernetes).
  bool comes_late = false;
  std::optional<bool> is_host;            // by --rdzv-conf is_host, or by the rank of a static job
  std::optional<std::string> local_addr;  // --local-addr
  // The endpoint's host is a NodeName of Slurm, which may have no address elsewhere; "": it is not.
  std::string slurm_host;
  bool is_slurm_host = false;  // and it is this node's
  MeetingPlace meeting;        // complete but for what needs the network
  // One of several launchers on this node: rank 0 is the agent, the others wait for it.
  std::optional<LocalTask> local_task;
  bool has_worker_a_task = false;     // no flag tells the number of workers
  std::vector<std::string> reasons;   // each choice that no flag made, for the log
  std::vector<std::string> warnings;  // for the log
};

// InvalidArgument for every value out of range and every pair that contradicts each other; the text
// names the flag, the value and the right form. `random_id` names a job of one node that neither a
// flag nor a scheduler names.
absl::StatusOr<JobSpec> MakeJobSpec(const RunFlags& flags, const EnvironmentLookup& environment,
                                    const Machine& machine, const std::string& random_id);

}  // namespace convene::launcher
