// How many CPUs this process may keep busy.
#pragma once

#include <string>

namespace convene {

// The CPUs of this process's affinity, which a cpuset narrows. At least 1.
int CountBoundCpus();

// At most as many as the quota of its cgroups: a container may run on every CPU and yet have the
// time of few of them. A quota of 1.5 keeps two busy. `root` as for ReadCgroupLimits.
int CountUsableCpus(const std::string& root = "");

}  // namespace convene
