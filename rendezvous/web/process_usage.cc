#include "rendezvous/web/process_usage.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"

namespace convene::rendezvous {
namespace {

int64_t CountOpenFds() {
  const auto names = ListDirectory("/proc/self/fd");
  return names.ok() ? static_cast<int64_t>(names->size()) - 1 : 0;  // not the directory itself
}

// The fields of /proc/self/stat from the third on: the second, the program's name, may have spaces.
std::vector<std::string> StatFields() {
  const std::string line = ReadFile("/proc/self/stat").value_or("");
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  return absl::StrSplit(line.substr(name_end + 1), ' ', absl::SkipEmpty());
}

int64_t FieldOf(const std::vector<std::string>& fields, size_t number) {
  int64_t value = 0;
  if (number - 3 >= fields.size() || !absl::SimpleAtoi(fields[number - 3], &value)) return 0;
  return value;
}

double SecondsSinceBoot() {
  timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::ToDoubleSeconds(absl::DurationFromTimespec(now));
}

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  const std::vector<std::string> fields = StatFields();
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  // The fields are numbered as in proc(5).
  usage.cpu_seconds =
      static_cast<double>(FieldOf(fields, 14) + FieldOf(fields, 15)) / ticks_per_second;
  const double age =
      SecondsSinceBoot() - static_cast<double>(FieldOf(fields, 22)) / ticks_per_second;
  usage.start_time_seconds = absl::ToDoubleSeconds(WallNow() - absl::UnixEpoch()) - age;
  usage.virtual_bytes = FieldOf(fields, 23);
  usage.resident_bytes = FieldOf(fields, 24) * sysconf(_SC_PAGESIZE);
  usage.open_fds = CountOpenFds();
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.most_fds = static_cast<int64_t>(limit.rlim_cur);
  return usage;
}

}  // namespace convene::rendezvous
