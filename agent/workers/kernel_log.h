// The kernel's log (/dev/kmsg) from the agent's start on, where this process may read it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/core/kernel_lines.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// Not thread-safe.
class KernelLog {
 public:
  // Only what the kernel writes from now on is read.
  KernelLog();
  // KernelLinesAbout this process, of all lines so far. Reads for 20 ms at most; none where the
  // kernel's log is closed to this process.
  std::vector<std::string> LinesAbout(int64_t pid);

 private:
  const UniqueFd file_;
  std::vector<KernelRecord> records_;  // the last ones
};

}  // namespace convene::agent
