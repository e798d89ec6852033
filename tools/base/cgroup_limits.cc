#include "tools/base/cgroup_limits.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"

namespace convene {
namespace {

// A hierarchy of cgroups, and this process's place in it.
struct Place {
  std::string mount;
  std::string path;  // "/user.slice/x", or "/"
};

template <typename T>
void Lower(std::optional<T>* limit, T value) {
  *limit = limit->has_value() ? std::min(**limit, value) : value;
}

// "max", -1 and v1's number near 2^63 mean no limit; the last one is so large that it limits
// nothing.
std::optional<int64_t> NumberIn(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadFile(file);
  int64_t number = 0;
  if (!text.ok() || !absl::SimpleAtoi(*text, &number) || number <= 0) return std::nullopt;
  return number;
}

// Calls `take` with the directory of the place and of each cgroup above it. A container without a
// cgroup namespace sees the host's path, and under the mount its own cgroup only: then just the
// mount itself exists.
template <typename Take>
void ForEachAbove(const Place& place, const Take& take) {
  std::string path = place.path;
  while (path.size() > 1) {
    take(place.mount + path);
    path.resize(path.rfind('/'));
  }
  take(place.mount);
}

void ReadCpusV2(const std::string& cgroup, CgroupLimits* limits) {
  const absl::StatusOr<std::string> text = ReadFile(cgroup + "/cpu.max");  // "QUOTA PERIOD"
  if (!text.ok()) return;
  const std::vector<std::string> words = absl::StrSplit(*text, absl::ByAnyChar(" \n"));
  double quota = 0;
  double period = 0;
  if (words.size() < 2 || !absl::SimpleAtod(words[0], &quota) || words[0] == "max" ||
      !absl::SimpleAtod(words[1], &period) || quota <= 0 || period <= 0) {
    return;
  }
  Lower(&limits->cpus, quota / period);
}

void ReadCpusV1(const std::string& cgroup, CgroupLimits* limits) {
  const auto quota = NumberIn(cgroup + "/cpu.cfs_quota_us");
  const auto period = NumberIn(cgroup + "/cpu.cfs_period_us");
  if (quota.has_value() && period.has_value()) {
    Lower(&limits->cpus, static_cast<double>(*quota) / static_cast<double>(*period));
  }
}

void ReadMemory(const std::string& file, CgroupLimits* limits) {
  if (const auto bytes = NumberIn(file)) Lower(&limits->memory_bytes, *bytes);
}

}  // namespace

CgroupLimits ReadCgroupLimits(const std::string& root) {
  CgroupLimits limits;
  const absl::StatusOr<std::string> memberships = ReadFile(root + "/proc/self/cgroup");
  if (!memberships.ok()) return limits;
  const std::string mounts = root + "/sys/fs/cgroup";
  for (const absl::string_view line : absl::StrSplit(*memberships, '\n', absl::SkipEmpty())) {
    // "NUMBER:CONTROLLERS:PATH"; v2 has number 0 and names no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[0] == "0") {
      // The second mount is for hosts that still have v1 hierarchies.
      for (const char* mount : {"", "/unified"}) {
        ForEachAbove({mounts + mount, parts[2]}, [&](const std::string& cgroup) {
          ReadCpusV2(cgroup, &limits);
          ReadMemory(cgroup + "/memory.max", &limits);
        });
      }
      continue;
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      ForEachAbove({absl::StrCat(mounts, "/", controller), parts[2]},
                   [&](const std::string& cgroup) {
                     if (controller == "cpu") ReadCpusV1(cgroup, &limits);
                     if (controller == "memory") {
                       ReadMemory(cgroup + "/memory.limit_in_bytes", &limits);
                     }
                   });
    }
  }
  return limits;
}

int64_t UsableMemoryBytes() {
  const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(bytes, ReadCgroupLimits().memory_bytes.value_or(bytes));
}

int64_t AvailableMemoryBytes() {
  const int64_t usable = UsableMemoryBytes();
  const std::string facts = ReadFile("/proc/meminfo").value_or("");
  const std::vector<std::string> parts = absl::StrSplit(facts, "MemAvailable:");
  int64_t kibibytes = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[1].substr(0, parts[1].find(" kB")), &kibibytes)) {
    return usable;
  }
  return std::min(usable, kibibytes * 1024);
}

}  // namespace convene
