#include "tools/base/cgroup_limits.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

// The files of a version's memory controller, and what stands before the lines of its memory.stat
// that count the cgroups below, too.
struct MemoryFiles {
  const char* limit;
  const char* used;
  absl::string_view total;
};
constexpr MemoryFiles kMemoryV2 = {"/memory.max", "/memory.current", ""};
constexpr MemoryFiles kMemoryV1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"};

void ReadMemory(const std::string& cgroup, const MemoryFiles& files, CgroupLimits* limits) {
  const std::optional<int64_t> bytes = NumberIn(cgroup + files.limit);
  if (!bytes.has_value()) return;
  Lower(&limits->memory_bytes, *bytes);
  // The pages of files, as in the kernel's MemAvailable; those of /dev/shm do not count there.
  int64_t droppable = 0;
  const std::string facts = ReadFile(cgroup + "/memory.stat").value_or("");
  for (absl::string_view line : absl::StrSplit(facts, '\n')) {
    int64_t pages = 0;
    if (absl::ConsumePrefix(&line, files.total) &&
        (absl::ConsumePrefix(&line, "inactive_file ") ||
         absl::ConsumePrefix(&line, "active_file ")) &&
        absl::SimpleAtoi(line, &pages)) {
      droppable += pages;
    }
  }
  const int64_t used = NumberIn(cgroup + files.used).value_or(0);
  Lower(&limits->memory_left_bytes, std::max<int64_t>(0, *bytes - used + droppable));
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
          ReadMemory(cgroup, kMemoryV2, &limits);
        });
      }
      continue;
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      ForEachAbove({absl::StrCat(mounts, "/", controller), parts[2]},
                   [&](const std::string& cgroup) {
                     if (controller == "cpu") ReadCpusV1(cgroup, &limits);
                     if (controller == "memory") ReadMemory(cgroup, kMemoryV1, &limits);
                   });
    }
  }
  return limits;
}

int64_t UsableMemoryBytes() {
  const int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(bytes, ReadCgroupLimits().memory_bytes.value_or(bytes));
}

int64_t AvailableMemoryBytes(const std::string& root) {
  int64_t available = UsableMemoryBytes();
  const std::string facts = ReadFile(root + "/proc/meminfo").value_or("");
  const std::vector<std::string> parts = absl::StrSplit(facts, "MemAvailable:");
  int64_t kibibytes = 0;
  if (parts.size() > 1 && absl::SimpleAtoi(parts[1].substr(0, parts[1].find(" kB")), &kibibytes)) {
    available = std::min(available, kibibytes * 1024);
  }
  return std::min(available, ReadCgroupLimits(root).memory_left_bytes.value_or(available));
}

}  // namespace convene
