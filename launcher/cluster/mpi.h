// PURE. Reads the variables of mpirun and of starters like it (tried with Open MPI 4.1, and on
// one machine with MPICH 5.0 and Intel MPI 2021.18; the code for the others follows their manuals).
#pragma once

#include "absl/status/status.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// Asks the variables of Open MPI, of Hydra (MPICH, Intel MPI), of Flux and of Cray's PALS. Fills
// the fields that are still open. Several processes on one node are LocalTasks of one agent.
//
// Where Open MPI tells the address of mpirun's own machine, the nodes meet there. That is right
// only if mpirun runs on the first node; the process of rank 0 checks it. No other starter tells an
// address.
//
// InvalidArgument where a variable is no number, and where the processes do not divide evenly onto
// nodes.
absl::Status DetectMpi(const EnvironmentLookup& environment, const ProcessFacts& process,
                       DetectedJob* job);

}  // namespace convene::launcher
