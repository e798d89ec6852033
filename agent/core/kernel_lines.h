// PURE. The kernel's log lines that may tell why a worker ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::agent {

inline constexpr size_t kMostKernelLines = 4;

// Lines about hardware name no process: only those that are as new as this may tell why it ended.
inline constexpr absl::Duration kHardwareLinesAge = absl::Minutes(1);

struct KernelRecord {
  MonotonicTime at;
  std::string text;  // without what is not printable
};

// A record of /dev/kmsg, "6,1234,5678,-;text\n KEY=value": its third field is the time since the
// boot in microseconds. No text for no record.
KernelRecord ReadKernelRecord(absl::string_view record);

// Of `records` the texts of those about this process (killed for want of memory, a crash), and of
// those about hardware (a GPU's Xid, a machine check, a disk's error) that are no older than
// kHardwareLinesAge: the last kMostKernelLines, where the driver's cleanup (Xid 45) and lines of
// hardware that do not say how bad the error was go first.
std::vector<std::string> KernelLinesAbout(const std::vector<KernelRecord>& records, int64_t pid,
                                          MonotonicTime now);

}  // namespace convene::agent
