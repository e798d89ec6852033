// Reads a machine's facts: from /proc and /sys, by system calls, and of GPUs by NVML. Every wait is
// bounded; what cannot be read stays as facts.h has it, or has its error there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/machine/facts.h"

namespace convene::agent {

struct FactsOptions {
  std::vector<std::string> folders;  // that are written to for a moment, beside the current one
  std::map<std::string, std::string> environment;
  absl::Duration name_timeout = absl::Seconds(1.5);
  std::string root;  // "", or where a test keeps its /proc and /sys
  // Loaded where there are device files of GPUs.
  std::string gpu_library = "libnvidia-ml.so.1";
  std::string nccl_library = "libnccl.so.2";
};

MachineFacts ReadFacts(const FactsOptions& options);

// Parts of it.
std::vector<Interface> ReadInterfaces(const std::string& root);
std::vector<RdmaPort> ReadRdmaPorts(const std::string& root);
Folder TryFolder(const std::string& path);
GpuDriver ReadGpuDriver(const std::string& root, const std::string& library);
// "2.28.9"; "" where the library is not there.
std::string ReadNcclVersion(const std::string& library);

}  // namespace convene::agent
