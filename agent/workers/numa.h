// This machine's facts for PlanNuma: CPUs by hwloc, devices by /proc and /sys.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/core/numa_plan.h"
#include "agent/options.h"

namespace convene::agent {

// The CPUs that this process may run on. `synthetic`: a topology in hwloc's own words ("pack:2
// numa:2 l3:2 core:8 pu:2"), all of whose CPUs count; "" = this machine. hwloc is loaded only here:
// NotFound where it is not installed, InvalidArgument for a description that it does not take.
absl::StatusOr<std::vector<NumaCpu>> ReadNumaCpus(const std::string& synthetic);

// The NUMA node of each NVIDIA GPU that a program with this environment sees, in the order in which
// the program counts them: by PCI address (as CUDA counts GPUs of one kind), or as
// CUDA_VISIBLE_DEVICES names them. Like CUDA, it stops at an entry that names no GPU. A GPU whose
// node the kernel does not know counts as on node 0. `root`: "", or where a test keeps its /proc
// and /sys.
std::vector<int> DeviceNodes(const std::string& root,
                             const std::map<std::string, std::string>& environment);

// The CPUs of each worker. Errors of ReadNumaCpus and PlanNuma.
absl::StatusOr<std::vector<std::vector<int>>> BindWorkers(
    NumaBinding binding, const std::map<std::string, std::string>& environment, int workers);

}  // namespace convene::agent
