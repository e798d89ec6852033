#include "agent/workers/memory_kills.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"

namespace convene::agent {

std::optional<int64_t> MemoryKillsIn(absl::string_view vmstat) {
  for (absl::string_view line : absl::StrSplit(vmstat, '\n')) {
    int64_t count = 0;
    if (absl::ConsumePrefix(&line, "oom_kill ") && absl::SimpleAtoi(line, &count)) return count;
  }
  return std::nullopt;
}

std::optional<int64_t> MemoryKills() {
  const absl::StatusOr<std::string> vmstat = ReadFile("/proc/vmstat");
  return vmstat.ok() ? MemoryKillsIn(*vmstat) : std::nullopt;
}

}  // namespace convene::agent
