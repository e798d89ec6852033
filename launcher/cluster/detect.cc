#include "launcher/cluster/detect.h"

#include "launcher/cluster/kubernetes.h"
#include "launcher/cluster/mpi.h"
#include "launcher/cluster/slurm.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {

absl::StatusOr<DetectedJob> DetectJob(const EnvironmentLookup& environment,
                                      const ProcessFacts& process) {
  DetectedJob job;
  CONVENE_RETURN_IF_ERROR(DetectMpi(environment, process, &job));
  CONVENE_RETURN_IF_ERROR(DetectSlurm(environment, process, &job));
  CONVENE_RETURN_IF_ERROR(DetectKubernetes(environment, process, &job));
  // Under `srun --pty` a person types, whatever program started this one.
  job.is_in_shell = IsShell(process.parent) || environment("SLURM_PTY_PORT").has_value();
  return job;
}

}  // namespace convene::launcher
