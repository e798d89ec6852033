// PURE. The kernel's log lines that may tell why a worker ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::agent {

inline constexpr size_t kMostKernelLines = 4;

// The text of a record of /dev/kmsg ("6,1234,5678,-;text\n KEY=value"), without what is not
// printable; "" for no record.
std::string KernelText(absl::string_view record);

// Of `texts` the ones about this process (killed for want of memory, a crash), and about hardware
// (a GPU's Xid, a machine check, a disk's error): the last kMostKernelLines.
std::vector<std::string> KernelLinesAbout(const std::vector<std::string>& texts, int64_t pid);

}  // namespace convene::agent
