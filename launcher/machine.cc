#include "launcher/machine.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/cluster/detected_job.h"
#include "launcher/cluster/kubernetes.h"
#include "tools/base/cpu_count.h"
#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/unique_fd.h"

namespace convene::launcher {
namespace {

// How many entries of `directory` are devices.
template <typename IsDevice>
int CountDevices(const std::string& directory, const IsDevice& is_device) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return 0;
  return static_cast<int>(std::count_if(names->begin(), names->end(), is_device));
}

// How many of the devices the first of `variables` that is set leaves to this process.
int CountUsable(int present, const std::vector<std::string>& variables,
                const EnvironmentLookup& environment) {
  for (const std::string& variable : variables) {
    const auto visible = environment(variable);
    if (visible.has_value() && present > 0) return CountVisibleDevices(*visible);
  }
  return present;
}

bool IsNvidia(const std::string& name) {
  int index = 0;
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, "nvidia") && absl::SimpleAtoi(rest, &index);
}

// As ROCm counts: the nodes of the kernel's driver that are GPUs. The kernel lets nobody read the
// number of a GPU that the container may not use.
int CountAmd(const std::string& root) {
  if (access((root + "/dev/kfd").c_str(), F_OK) != 0) return 0;
  const std::string nodes = root + "/sys/class/kfd/kfd/topology/nodes";
  return CountDevices(nodes, [&](const std::string& name) {
    uint64_t number = 0;
    const auto text = ReadFile(absl::StrCat(nodes, "/", name, "/gpu_id"));
    return text.ok() && absl::SimpleAtoi(*text, &number) && number != 0;
  });
}

// As Level Zero counts: the render nodes of Intel's devices.
int CountIntel(const std::string& root) {
  const std::string nodes = root + "/sys/class/drm";
  return CountDevices(nodes, [&](const std::string& name) {
    if (!absl::StartsWith(name, "renderD")) return false;
    const auto vendor = ReadFile(absl::StrCat(nodes, "/", name, "/device/vendor"));
    return vendor.ok() && absl::StartsWith(*vendor, "0x8086");
  });
}

// With PyTorch's order of ROCm's variables (torch/cuda/__init__.py, _parse_visible_devices).
int CountGpus(const EnvironmentLookup& environment, const std::string& root) {
  const int nvidia = CountDevices(root + "/dev", IsNvidia);
  if (nvidia > 0) return CountUsable(nvidia, {"CUDA_VISIBLE_DEVICES"}, environment);
  return CountUsable(CountAmd(root),
                     {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"},
                     environment);
}

std::string ProgramOf(int pid) {
  const auto name = ReadFile(absl::StrCat("/proc/", pid, "/comm"));
  return name.ok() ? std::string(absl::StripAsciiWhitespace(*name)) : "";
}

// 0: not to be known.
int ParentOf(int pid) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status")).value_or("");
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    int parent = 0;
    if (absl::ConsumePrefix(&line, "PPid:") && absl::SimpleAtoi(line, &parent)) return parent;
  }
  return 0;
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

std::string ParentName() { return ProgramOf(getppid()); }

int AncestorNamed(const std::string& name) {
  int pid = getppid();
  while (pid > 0 && ProgramOf(pid) != name) pid = ParentOf(pid);
  return pid;
}

Machine InspectMachine(const EnvironmentLookup& environment, const std::string& root) {
  Machine machine;
  machine.host_name = HostName();
  machine.full_name = FullNameIn(ReadFile("/etc/hosts").value_or(""), machine.host_name);
  machine.parent = ParentName();
  machine.has_own_group = getpgrp() == getpid();
  machine.hydra_proxy = AncestorNamed("hydra_pmi_proxy");
  machine.cpus = CountUsableCpus();
  machine.gpus = CountGpus(environment, root);
  machine.xpus = CountUsable(CountIntel(root), {"ZE_AFFINITY_MASK"}, environment);
  return machine;
}

absl::Status CheckPidfds() {
  const UniqueFd self(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  // Anything else (no descriptor is left) passes by, or is told where it happens.
  if (self.valid() || (errno != ENOSYS && errno != EPERM)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "this node cannot watch its workers: the kernel, or the container's seccomp profile, does "
      "not allow pidfd_open (",
      std::strerror(errno),
      "). It takes Linux 5.3 or newer, and in a container Docker 20.10 or newer, or a seccomp "
      "profile that allows pidfd_open"));
}

}  // namespace convene::launcher
