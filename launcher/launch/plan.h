// PURE. From flags and hosts to the command line and the task of each host.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/launch/exported_variables.h"
#include "launcher/launch/fleet.h"
#include "launcher/launch/hostfile.h"
#include "launcher/launch/launch_flags.h"
#include "launcher/launch/task.h"

namespace convene::launcher {

// The facts about this process that are no flags.
struct LaunchSurroundings {
  std::string directory;    // the current one: agents start in the same
  std::string own_program;  // this program's path
  std::string random_id;    // the run's, where no flag names it
  int random_port = 0;      // the rendezvous's, where no flag names the endpoint
  Variables variables;      // ExportedVariables' answer
};

struct LaunchPlan {
  FleetOptions fleet;
  // Of each host, in the order of fleet.hosts, which is that of node ranks.
  std::vector<std::vector<std::string>> commands;  // to execute here
  std::vector<HostTask> tasks;
  std::string run_id;
  // Where the nodes meet, if a token of this command's own may lock it: the first host serves the
  // rendezvous for this run alone, and the user has named no token and no certificates. Else "".
  std::string door;
  std::vector<std::string> reasons;  // for the log
};

// InvalidArgument for a flag of `convene run` that has no place here, for all that `convene run`
// itself would refuse on the hosts, and where the number of hosts does not fit --nnodes. REQUIRES:
// `hosts` is not empty.
absl::StatusOr<LaunchPlan> MakeLaunchPlan(const LaunchFlags& flags,
                                          const std::vector<LaunchHost>& hosts,
                                          const LaunchSurroundings& surroundings);

}  // namespace convene::launcher
