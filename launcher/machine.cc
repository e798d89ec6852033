#include "launcher/machine.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"

namespace convene::launcher {
namespace {

int CountCpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return std::max(1, CPU_COUNT(&usable));
  // The machine has more CPUs than a cpu_set_t has bits.
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int CountVisible(const std::string& list) {
  int count = 0;
  for (const absl::string_view item : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    // CUDA itself stops at the first entry that names no device.
    if (absl::StartsWith(absl::StripAsciiWhitespace(item), "-")) break;
    ++count;
  }
  return count;
}

int CountGpus(const EnvironmentLookup& environment) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory("/dev");
  if (!names.ok()) return 0;
  int present = 0;
  for (const std::string& name : *names) {
    int index = 0;
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, "nvidia") && absl::SimpleAtoi(rest, &index)) ++present;
  }
  const auto visible = environment("CUDA_VISIBLE_DEVICES");
  if (visible.has_value() && present > 0) return CountVisible(*visible);
  return present;
}

// Counts the render nodes of Intel devices, as Level Zero does.
int CountXpus(const EnvironmentLookup& environment) {
  constexpr char kIntel[] = "0x8086";
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory("/sys/class/drm");
  if (!names.ok()) return 0;
  int present = 0;
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, "renderD")) continue;
    const auto vendor = ReadFile("/sys/class/drm/" + name + "/device/vendor");
    if (vendor.ok() && absl::StartsWith(*vendor, kIntel)) ++present;
  }
  const auto visible = environment("ZE_AFFINITY_MASK");
  if (visible.has_value() && present > 0) return CountVisible(*visible);
  return present;
}

}  // namespace

Machine InspectMachine(const EnvironmentLookup& environment) {
  Machine machine;
  machine.host_name = HostName();
  machine.cpus = CountCpus();
  machine.gpus = CountGpus(environment);
  machine.xpus = CountXpus(environment);
  return machine;
}

}  // namespace convene::launcher
