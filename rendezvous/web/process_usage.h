// This process's use of resources, as the kernel counts it.
#pragma once

#include <cstdint>

namespace convene::rendezvous {

struct ProcessUsage {
  double cpu_seconds = 0;  // user and system, all threads
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  double start_time_seconds = 0;  // wall clock, since 1970
  int64_t open_fds = 0;
  int64_t most_fds = 0;  // the soft limit
};

// Reads /proc/self; a figure is 0 where that has none.
ProcessUsage ReadProcessUsage();

}  // namespace convene::rendezvous
