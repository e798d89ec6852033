// What this machine has, as far as the command line may refer to it.
#pragma once

#include "launcher/job_spec.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// CPUs: those this process may use. GPUs: those that CUDA_VISIBLE_DEVICES names, else the device
// files /dev/nvidia<N>. XPUs: Intel's render nodes, or those that ZE_AFFINITY_MASK names. No driver
// is asked, so this costs microseconds.
Machine InspectMachine(const EnvironmentLookup& environment);

}  // namespace convene::launcher
