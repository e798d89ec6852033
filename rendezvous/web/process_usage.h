// The resources that this process uses, as the kernel sees them.
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

// From /proc/self; 0 where that says nothing.
ProcessUsage ReadProcessUsage();

}  // namespace convene::rendezvous
