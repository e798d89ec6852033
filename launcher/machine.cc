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

// How many entries of `directory` are devices that `variable` leaves to this process.
template <typename IsDevice>
int CountDevices(const std::string& directory, const IsDevice& is_device,
                 const EnvironmentLookup& environment, const std::string& variable) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return 0;
  const auto present = std::count_if(names->begin(), names->end(), is_device);
  const auto visible = environment(variable);
  return visible.has_value() && present > 0 ? CountVisible(*visible) : static_cast<int>(present);
}

bool IsNvidia(const std::string& name) {
  int index = 0;
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, "nvidia") && absl::SimpleAtoi(rest, &index);
}

// As Level Zero counts: the render nodes of Intel's devices.
bool IsIntel(const std::string& name) {
  if (!absl::StartsWith(name, "renderD")) return false;
  const auto vendor = ReadFile("/sys/class/drm/" + name + "/device/vendor");
  return vendor.ok() && absl::StartsWith(*vendor, "0x8086");
}

}  // namespace

Machine InspectMachine(const EnvironmentLookup& environment) {
  Machine machine;
  machine.host_name = HostName();
  machine.cpus = CountCpus();
  machine.gpus = CountDevices("/dev", IsNvidia, environment, "CUDA_VISIBLE_DEVICES");
  machine.xpus = CountDevices("/sys/class/drm", IsIntel, environment, "ZE_AFFINITY_MASK");
  return machine;
}

}  // namespace convene::launcher
