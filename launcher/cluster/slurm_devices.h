// PURE. The part of a node that Slurm gave to a job: tasks, GPUs, CPUs.
#pragma once

#include "absl/status/status.h"
#include "launcher/cluster/detected_job.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// In a task of a step: which of the step's tasks on this node it is. REQUIRES: job->nodes and
// job->job_id are filled. InvalidArgument where a variable is no number or contradicts another.
absl::Status DetectSlurmTasks(const EnvironmentLookup& environment, DetectedJob* job);

// The node's GPUs and CPUs, and the number of workers that follows from them and from the tasks.
// Where Slurm's count of GPUs and the visible ones differ, the smaller count wins: a worker can use
// only what it sees, and what Slurm did not give belongs to other jobs. InvalidArgument where a
// variable is no number.
absl::Status DetectSlurmDevices(const EnvironmentLookup& environment, DetectedJob* job);

}  // namespace convene::launcher
