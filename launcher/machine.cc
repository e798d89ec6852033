#include "launcher/machine.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/cluster/detected_job.h"
#include "launcher/cluster/kubernetes.h"
#include "tools/base/cpu_count.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"

namespace convene::launcher {
namespace {

// How many entries of `directory` are devices that `variable` leaves to this process.
template <typename IsDevice>
int CountDevices(const std::string& directory, const IsDevice& is_device,
                 const EnvironmentLookup& environment, const std::string& variable) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return 0;
  const auto present = std::count_if(names->begin(), names->end(), is_device);
  const auto visible = environment(variable);
  return visible.has_value() && present > 0 ? CountVisibleDevices(*visible)
                                            : static_cast<int>(present);
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

std::string NvlinkTopology(const agent::GpuDriver& driver) {
  if (driver.gpus.empty()) return "";
  const std::string& domain = driver.gpus.front().cluster_uuid;
  // A GPU alone in its domain has zeros.
  const bool is_none = domain.find_first_not_of('0') == domain.npos;
  for (const agent::Gpu& gpu : driver.gpus) {
    if (is_none || gpu.cluster_uuid != domain) return "";
  }
  return absl::StrCat("nvlink-", domain);
}

std::string ParentName() {
  const auto name = ReadFile(absl::StrCat("/proc/", getppid(), "/comm"));
  return name.ok() ? std::string(absl::StripAsciiWhitespace(*name)) : "";
}

Machine InspectMachine(const EnvironmentLookup& environment) {
  Machine machine;
  machine.host_name = HostName();
  machine.full_name = FullNameIn(ReadFile("/etc/hosts").value_or(""), machine.host_name);
  machine.parent = ParentName();
  machine.cpus = CountUsableCpus();
  machine.gpus = CountDevices("/dev", IsNvidia, environment, "CUDA_VISIBLE_DEVICES");
  machine.xpus = CountDevices("/sys/class/drm", IsIntel, environment, "ZE_AFFINITY_MASK");
  return machine;
}

}  // namespace convene::launcher
