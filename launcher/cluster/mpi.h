// PURE. Reads the variables of mpirun and of starters like it (tried with Open MPI 4.1; the others
// by their manuals: shared/reference/clusters.md, 4).
#pragma once

#include "absl/status/status.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// Asks the variables of Open MPI, of Hydra (MPICH, Intel MPI), of Flux and of Cray's PALS. Fills
// the fields that are still open. Several processes on one node are LocalTasks of one agent.
//
// The nodes meet at mpirun's own machine where Open MPI tells its address: it is the first node's
// if mpirun runs there, which the process of rank 0 checks. No other starter tells an address.
//
// InvalidArgument where a variable is no number, and where the processes do not divide evenly onto
// nodes.
absl::Status DetectMpi(const EnvironmentLookup& environment, const ProcessFacts& process,
                       DetectedJob* job);

}  // namespace convene::launcher
