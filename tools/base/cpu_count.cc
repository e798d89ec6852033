#include "tools/base/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "tools/base/cgroup_limits.h"

namespace convene {

int CountBoundCpus() {
  cpu_set_t bound;
  CPU_ZERO(&bound);
  // Fails where the machine has more CPUs than a cpu_set_t has bits.
  const int count = sched_getaffinity(0, sizeof(bound), &bound) == 0
                        ? CPU_COUNT(&bound)
                        : static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, count);
}

int CountUsableCpus(const std::string& root) {
  const int bound = CountBoundCpus();
  const double quota = ReadCgroupLimits(root).cpus.value_or(bound);
  return static_cast<int>(std::min<double>(bound, std::ceil(quota)));
}

}  // namespace convene
