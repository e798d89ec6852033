// The kernel's count of processes that it killed because there was no memory left.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace convene::agent {

// PURE. The count in a text such as /proc/vmstat's; nullopt: the text has none.
std::optional<int64_t> MemoryKillsIn(absl::string_view vmstat);

// Of this machine since it started, whether the machine or a cgroup had no memory left; nullopt:
// the kernel does not say (before Linux 4.13, in some sandboxes).
std::optional<int64_t> MemoryKills();

}  // namespace convene::agent
