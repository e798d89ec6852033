// PURE. Reads the variables that Slurm gives the processes of a job (README.md lists them).
#pragma once

#include "absl/status/status.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// Fills the fields that are still open. Where a field is filled already, another starter (mpirun)
// runs inside of Slurm's job: then the step and the tasks that Slurm tells of are the starter's
// own, and only what concerns the whole allocation counts.
//
// InvalidArgument where a variable is no number, where a node list cannot be read, and where
// variables contradict each other.
absl::Status DetectSlurm(const EnvironmentLookup& environment, const ProcessFacts& process,
                         DetectedJob* job);

}  // namespace convene::launcher
