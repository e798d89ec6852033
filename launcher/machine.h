// Finds what the command line and a scheduler's variables may refer to on this machine.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "agent/machine/facts.h"
#include "launcher/job_spec.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// CPUs: all that this process may use, at most the quota of its cgroups. GPUs: the entries of
// CUDA_VISIBLE_DEVICES, else the device files /dev/nvidia<N>; without such files the entries of
// HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, else AMD's GPUs in the
// kernel's list. XPUs: the entries of ZE_AFFINITY_MASK, else Intel's render nodes. No driver is
// asked, so this costs microseconds; GPUs that only a driver knows (WSL2's /dev/dxg) do not count.
// `root`: "", or where a test keeps its /dev and /sys.
Machine InspectMachine(const EnvironmentLookup& environment, const std::string& root = "");

// PURE. The topology label of a node whose GPUs are in one NVLink domain that reaches beyond the
// node (NVML's ClusterUUID), so that nodes of one domain are neighbours; "" for any other node.
std::string NvlinkTopology(const agent::GpuDriver& driver);

// The name of the parent's program. Empty where the parent is outside of this pid namespace.
std::string ParentName();

// The nearest process above this one whose program has this name (15 bytes at most); 0: there is
// none in this pid namespace.
int AncestorNamed(const std::string& name);

// Unavailable when the kernel or the container gives no descriptors of processes (pidfd_open), by
// which the agent watches its workers; with what to do.
absl::Status CheckPidfds();

}  // namespace convene::launcher
