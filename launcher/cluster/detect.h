// PURE. Asks every scheduler that may have started this process.
#pragma once

#include "absl/status/statusor.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// Asks the variables of mpirun and its like, then Slurm's, then Kubernetes'; each of them fills the
// fields that are still open. InvalidArgument when a variable is no number, when a node list cannot
// be read, and when variables contradict each other: the text names them.
absl::StatusOr<DetectedJob> DetectJob(const EnvironmentLookup& environment,
                                      const ProcessFacts& process);

}  // namespace convene::launcher
