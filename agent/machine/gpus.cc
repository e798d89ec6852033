// Asks NVML about the GPUs. Its types stand here because its header comes with the CUDA toolkit,
// which a machine that builds the launcher need not have (NVIDIA, NVML API Reference Guide).
#include <dlfcn.h>

#include <cctype>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "agent/machine/ask_child.h"
#include "agent/machine/read_facts.h"
#include "tools/base/files.h"

namespace convene::agent {
namespace {

constexpr absl::Duration kDriverTimeout = absl::Seconds(10);
constexpr int kMostLinks = 18;

using Device = void*;
struct PciInfo {
  char old_bus_id[16];
  unsigned numbers[5];
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};
struct FabricInfo {
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
};
// nvmlClocksThrottleReason...: heat has a bit of the driver's and one of the hardware's.
constexpr unsigned long long kClockSetting = 0x2;
constexpr unsigned long long kPowerLimit = 0x4;
constexpr unsigned long long kHardware = 0x8;
constexpr unsigned long long kHeat = 0x20 | 0x40;
constexpr unsigned long long kPowerBrake = 0x80;

Slowdown SlowdownOf(unsigned long long reasons) {
  const auto has = [reasons](unsigned long long bits) { return (reasons & bits) != 0; };
  return {.by_heat = has(kHeat),
          .by_power_brake = has(kPowerBrake),
          // The hardware's bit is set with the closer ones as well.
          .by_hardware = has(kHardware) && !has(kHeat | kPowerBrake),
          .by_power_limit = has(kPowerLimit),
          .by_clock_setting = has(kClockSetting)};
}

// Of a state that this file does not know: none.
FabricState FabricStateOf(int64_t state) {
  const bool is_known = state >= 0 && state <= static_cast<int64_t>(FabricState::kCompleted);
  return is_known ? static_cast<FabricState>(state) : FabricState::kNone;
}

class Nvml {
 public:
  explicit Nvml(const std::string& library) : library_(dlopen(library.c_str(), RTLD_NOW)) {}

  bool is_there() const { return library_ != nullptr; }
  // Whether the function is there and gives 0.
  template <typename... Arguments>
  bool Call(const char* name, Arguments... arguments) {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    code_ = function == nullptr ? -1 : function(arguments...);
    return code_ == 0;
  }
  // Of the last call.
  std::string Error() {
    auto* const text = reinterpret_cast<const char* (*)(int)>(dlsym(library_, "nvmlErrorString"));
    return text == nullptr || code_ < 0 ? "it is too old" : text(code_);
  }

 private:
  void* const library_;
  int code_ = 0;
};

Gpu ReadGpu(Nvml& nvml, Device device) {
  Gpu gpu;
  char text[96] = {};
  if (nvml.Call("nvmlDeviceGetName", device, &text[0], 96u)) gpu.name = text;
  if (nvml.Call("nvmlDeviceGetUUID", device, &text[0], 96u)) gpu.uuid = text;
  PciInfo pci = {};
  // "00000000:3B:00.0", and sysfs has four digits of the domain.
  if (nvml.Call("nvmlDeviceGetPciInfo_v3", device, &pci)) {
    gpu.pci_address = absl::AsciiStrToLower(pci.bus_id);
    if (gpu.pci_address.size() == 16) gpu.pci_address.erase(0, 4);
  }
  Memory memory = {};
  if (nvml.Call("nvmlDeviceGetMemoryInfo", device, &memory)) {
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
    gpu.used_bytes = static_cast<int64_t>(memory.used);
  }
  unsigned long long errors = 0;
  if (nvml.Call("nvmlDeviceGetTotalEccErrors", device, 1, 0, &errors)) {
    gpu.uncorrected_errors = static_cast<int64_t>(errors);
  }
  unsigned corrected = 0, uncorrected = 0, is_pending = 0, has_failed = 0;
  if (nvml.Call("nvmlDeviceGetRemappedRows", device, &corrected, &uncorrected, &is_pending,
                &has_failed)) {
    gpu.remapping_failed = has_failed != 0;
  }
  int is_retiring = 0;
  nvml.Call("nvmlDeviceGetRetiredPagesPendingStatus", device, &is_retiring);
  gpu.needs_reset = is_pending != 0 || is_retiring != 0;
  unsigned long long reasons = 0;
  nvml.Call("nvmlDeviceGetCurrentClocksThrottleReasons", device, &reasons);
  gpu.slowdown = SlowdownOf(reasons);
  int is_persistent = 1;
  nvml.Call("nvmlDeviceGetPersistenceMode", device, &is_persistent);
  gpu.is_persistent = is_persistent != 0;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int is_up = 0;
    if (nvml.Call("nvmlDeviceGetNvLinkState", device, link, &is_up)) {
      ++(is_up != 0 ? gpu.links_up : gpu.links_down);
    }
  }
  FabricInfo fabric = {};
  if (!nvml.Call("nvmlDeviceGetGpuFabricInfo", device, &fabric)) return gpu;
  gpu.fabric = FabricStateOf(fabric.state);
  if (gpu.fabric != FabricState::kCompleted) return gpu;
  gpu.fabric_error = fabric.status;
  if (fabric.status != 0) return gpu;
  gpu.clique = static_cast<int>(fabric.clique);
  gpu.cluster_uuid = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(fabric.cluster_uuid), 16));
  return gpu;
}

GpuDriver AskNvml(const std::string& library) {
  GpuDriver driver;
  Nvml nvml(library);
  if (!nvml.is_there()) {
    driver.error = absl::StrCat("the driver's library ", library, " cannot be loaded");
    return driver;
  }
  if (!nvml.Call("nvmlInit_v2")) {
    driver.error = absl::StrCat("the driver does not answer: ", nvml.Error());
    return driver;
  }
  char version[96] = {};
  if (nvml.Call("nvmlSystemGetDriverVersion", &version[0], 96u)) driver.version = version;
  int cuda = 0;
  if (nvml.Call("nvmlSystemGetCudaDriverVersion_v2", &cuda)) {
    driver.cuda = absl::StrCat(cuda / 1000, ".", cuda % 1000 / 10);
  }
  unsigned count = 0;
  nvml.Call("nvmlDeviceGetCount_v2", &count);
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (nvml.Call("nvmlDeviceGetHandleByIndex_v2", i, &device)) {
      driver.gpus.push_back(ReadGpu(nvml, device));
    }
  }
  nvml.Call("nvmlShutdown");
  return driver;
}

// A digit for each reason.
std::string SlowdownText(const Slowdown& slowdown) {
  return absl::StrCat(static_cast<int>(slowdown.by_heat), static_cast<int>(slowdown.by_power_brake),
                      static_cast<int>(slowdown.by_hardware),
                      static_cast<int>(slowdown.by_power_limit),
                      static_cast<int>(slowdown.by_clock_setting));
}

Slowdown ParseSlowdown(const std::string& text) {
  if (text.size() != 5) return {};
  return {.by_heat = text[0] == '1',
          .by_power_brake = text[1] == '1',
          .by_hardware = text[2] == '1',
          .by_power_limit = text[3] == '1',
          .by_clock_setting = text[4] == '1'};
}

// The child's answer as text: the driver's line, and a line for each GPU.
std::string Text(const GpuDriver& driver) {
  std::vector<std::string> lines = {
      absl::StrJoin({driver.version, driver.cuda, driver.error}, "\t")};
  for (const Gpu& gpu : driver.gpus) {
    lines.push_back(absl::StrJoin(
        std::make_tuple(gpu.name, gpu.uuid, gpu.pci_address, gpu.memory_bytes, gpu.used_bytes,
                        gpu.uncorrected_errors.value_or(-1), gpu.needs_reset ? 1 : 0,
                        gpu.remapping_failed ? 1 : 0, SlowdownText(gpu.slowdown),
                        gpu.is_persistent ? 1 : 0, gpu.links_up, gpu.links_down, gpu.cluster_uuid,
                        static_cast<int>(gpu.fabric), gpu.fabric_error, gpu.clique),
        "\t"));
  }
  return absl::StrJoin(lines, "\n");
}

GpuDriver ParseAnswer(const std::string& text) {
  GpuDriver driver;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> first = absl::StrSplit(lines[0], '\t');
  if (first.size() == 3) {
    driver.version = first[0];
    driver.cuda = first[1];
    driver.error = first[2];
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> words = absl::StrSplit(lines[i], '\t');
    if (words.size() != 16) continue;
    const auto number = [&](size_t place) {
      int64_t value = 0;
      return absl::SimpleAtoi(words[place], &value) ? value : 0;
    };
    Gpu gpu = {.name = words[0],
               .uuid = words[1],
               .pci_address = words[2],
               .memory_bytes = number(3),
               .used_bytes = number(4),
               .needs_reset = number(6) != 0,
               .remapping_failed = number(7) != 0,
               .slowdown = ParseSlowdown(words[8]),
               .is_persistent = number(9) != 0,
               .links_up = static_cast<int>(number(10)),
               .links_down = static_cast<int>(number(11)),
               .fabric = FabricStateOf(number(13)),
               .fabric_error = static_cast<int>(number(14)),
               .cluster_uuid = words[12],
               .clique = static_cast<int>(number(15))};
    if (number(5) >= 0) gpu.uncorrected_errors = number(5);
    driver.gpus.push_back(std::move(gpu));
  }
  return driver;
}

GpuDriver AskDriver(const std::string& library) {
  const auto answer = AskInChild([&] { return Text(AskNvml(library)); }, kDriverTimeout);
  if (!answer.has_value()) {
    return {.error = absl::StrCat("the driver does not answer within ",
                                  absl::FormatDuration(kDriverTimeout))};
  }
  if (answer->empty()) return {.error = "the driver's library ended the program that asked it"};
  return ParseAnswer(*answer);
}

int DeviceFiles(const std::string& root) {
  int files = 0;
  const auto names = ListDirectory(root + "/dev").value_or(std::vector<std::string>());
  for (const std::string& name : names) {
    const bool is_numbered = name.size() > 6 && absl::StartsWith(name, "nvidia") &&
                             std::isdigit(static_cast<unsigned char>(name[6])) != 0;
    files += is_numbered ? 1 : 0;
  }
  return files;
}

}  // namespace

std::string ReadNcclVersion(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return "";
  // ncclResult_t ncclGetVersion(int*): nccl.h. Up to 2.8 a major version counts 1,000.
  using GetVersion = int (*)(int* version);
  const auto get = reinterpret_cast<GetVersion>(dlsym(handle, "ncclGetVersion"));
  int number = 0;
  const bool has = get != nullptr && get(&number) == 0;
  const int major = number < 10000 ? 1000 : 10000;
  const std::string version =
      has ? absl::StrCat(number / major, ".", number % major / 100, ".", number % 100) : "";
  dlclose(handle);
  return version;
}

GpuDriver ReadGpuDriver(const std::string& root, const std::string& library) {
  const int files = DeviceFiles(root);
  if (files == 0) return {};
  GpuDriver driver = AskDriver(library);
  driver.device_files = files;
  for (Gpu& gpu : driver.gpus) {
    const std::string node =
        ReadFile(absl::StrCat(root, "/sys/bus/pci/devices/", gpu.pci_address, "/numa_node"))
            .value_or("");
    int number = -1;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(node), &number)) gpu.numa_node = number;
  }
  return driver;
}

}  // namespace convene::agent
