// Finds what the command line and a scheduler's variables may refer to on this machine.
#pragma once

#include <string>

#include "launcher/job_spec.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// CPUs: all that this process may use, at most the quota of its cgroups. GPUs: the entries of
// CUDA_VISIBLE_DEVICES, else the device files /dev/nvidia<N>. XPUs: the entries of
// ZE_AFFINITY_MASK, else Intel's render nodes. No driver is asked, so this costs microseconds.
Machine InspectMachine(const EnvironmentLookup& environment);

// The name of the parent's program. Empty where the parent is outside of this pid namespace.
std::string ParentName();

}  // namespace convene::launcher
