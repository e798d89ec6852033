#include "tools/base/core_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace convene {
namespace {

// Linux takes no file this small, and a limit of 1 alone keeps it from starting the program of
// core_pattern too: that program gets all other limits, 0 too, as mere information.
// (PR_SET_DUMPABLE would do the same, but would hide the agent's /proc/PID/fd, by which its workers
// open the memory that it holds for them.)
constexpr rlim_t kNoCore = 1;

rlimit before = {};
bool has_changed = false;

}  // namespace

void LeaveNoCoreFile() {
  if (has_changed || getrlimit(RLIMIT_CORE, &before) != 0) return;
  const rlimit none = {.rlim_cur = std::min(kNoCore, before.rlim_max), .rlim_max = before.rlim_max};
  has_changed = setrlimit(RLIMIT_CORE, &none) == 0;
}

void RestoreCoreLimit() {
  if (has_changed) setrlimit(RLIMIT_CORE, &before);
}

}  // namespace convene
