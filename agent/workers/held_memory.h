// The memory that an agent holds for its workers, from epoch to epoch.
#pragma once

#include <string>

#include "tools/base/unique_fd.h"

namespace convene::agent {

// An empty file in memory that has no name in any folder: whatever workers write to it outlives
// them, and the kernel takes it back when the last process that has it open ends. So nothing is to
// be swept, however the agent and its workers end; the size of /dev/shm is no limit.
class HeldMemory {
 public:
  // Where the kernel refuses the file, path() is empty, and workers do without it.
  HeldMemory();

  // CONVENE_MEMORY: the workers of this process open it by its entry in /proc.
  const std::string& path() const { return path_; }

 private:
  const UniqueFd file_;
  const std::string path_;
};

}  // namespace convene::agent
