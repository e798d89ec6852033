// The CPU time and memory that cgroups leave to this process: a container's limits, and Slurm's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace convene {

// nullopt: no limit.
struct CgroupLimits {
  std::optional<double> cpus;  // CPU seconds a second; 1.5: one and a half CPUs
  std::optional<int64_t> memory_bytes;
  // The least that any of these cgroups still has: its limit less the memory that its processes
  // have taken. Cached files that the kernel can drop at once count as not taken.
  std::optional<int64_t> memory_left_bytes;
};

// The least limit over this process's cgroup and every one above it that can be seen, of v2 and v1:
// the kernel applies them all. Inside a container the cgroups above it cannot be seen; their limits
// hold all the same. Files that are missing or unreadable count as no limit. `root` stands before
// /proc and /sys: for tests.
CgroupLimits ReadCgroupLimits(const std::string& root = "");

// The memory that this process may use: what the machine has, or what the cgroups of a container or
// a Slurm job leave of it.
int64_t UsableMemoryBytes();

// The part of it that is free now or can be had at once: the kernel's MemAvailable, or what is left
// of the cgroups' limits. `root` as above.
int64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace convene
