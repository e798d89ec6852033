#include "agent/workers/numa.h"

#include <dlfcn.h>
#include <sched.h>

#include <hwloc.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

constexpr char kLibrary[] = "libhwloc.so.15";
constexpr unsigned kLeastVersion = 0x20500;  // for HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING

// The few functions of hwloc that are used. The library is loaded when a binding is asked for: a
// launch without one does not pay for it, and needs no hwloc.
struct Hwloc {
  decltype(&hwloc_get_api_version) get_api_version;
  decltype(&hwloc_topology_init) topology_init;
  decltype(&hwloc_topology_set_synthetic) topology_set_synthetic;
  decltype(&hwloc_topology_load) topology_load;
  decltype(&hwloc_topology_destroy) topology_destroy;
  decltype(&hwloc_get_type_depth) get_type_depth;
  decltype(&hwloc_get_obj_by_depth) get_obj_by_depth;
  decltype(&hwloc_bitmap_first) bitmap_first;
};

// Loads it for the life of the process.
absl::StatusOr<Hwloc> LoadHwloc() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat("--numa-binding needs ", kLibrary,
                                            ", which is not installed here (Debian and "
                                            "Ubuntu: libhwloc15, others: hwloc or hwloc-libs): ",
                                            dlerror()));
  }
  Hwloc hwloc = {};
  bool complete = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    complete = complete && function != nullptr;
  };
  find(hwloc.get_api_version, "hwloc_get_api_version");
  find(hwloc.topology_init, "hwloc_topology_init");
  find(hwloc.topology_set_synthetic, "hwloc_topology_set_synthetic");
  find(hwloc.topology_load, "hwloc_topology_load");
  find(hwloc.topology_destroy, "hwloc_topology_destroy");
  find(hwloc.get_type_depth, "hwloc_get_type_depth");
  find(hwloc.get_obj_by_depth, "hwloc_get_obj_by_depth");
  find(hwloc.bitmap_first, "hwloc_bitmap_first");
  const unsigned version = complete ? hwloc.get_api_version() : 0;
  if (version < kLeastVersion || version >> 16 != HWLOC_API_VERSION >> 16) {
    return absl::NotFoundError(
        absl::StrCat("--numa-binding: ", kLibrary, " is not hwloc 2, from 2.5 on"));
  }
  return hwloc;
}

bool IsDataCache(hwloc_obj_type_t type) {
  return type >= HWLOC_OBJ_L1CACHE && type <= HWLOC_OBJ_L5CACHE;
}

NumaCpu Locate(const Hwloc& hwloc, const hwloc_obj* unit) {
  NumaCpu cpu;
  cpu.cpu = static_cast<int>(unit->os_index);
  cpu.node = std::max(hwloc.bitmap_first(unit->nodeset), 0);
  cpu.core = static_cast<int>(unit->logical_index);
  for (const hwloc_obj* parent = unit->parent; parent != nullptr; parent = parent->parent) {
    const int index = static_cast<int>(parent->logical_index);
    if (parent->type == HWLOC_OBJ_CORE) cpu.core = index;
    if (parent->type == HWLOC_OBJ_PACKAGE) cpu.socket = index;
    // The outermost cache counts. Caches of different levels have numbers of their own.
    if (IsDataCache(parent->type)) cpu.cache = index + (static_cast<int>(parent->type) << 20);
  }
  return cpu;
}

struct Gpu {
  int node = 0;
  std::string uuid;
};

std::vector<Gpu> ReadGpus(const std::string& root) {
  const std::string directory = root + "/proc/driver/nvidia/gpus";
  const auto addresses = ListDirectory(directory);
  std::vector<Gpu> gpus;
  if (!addresses.ok()) return gpus;
  for (const std::string& address : *addresses) {
    Gpu gpu;
    const auto node = ReadFile(
        absl::StrCat(root, "/sys/bus/pci/devices/", absl::AsciiStrToLower(address), "/numa_node"));
    if (!node.ok() || !absl::SimpleAtoi(*node, &gpu.node)) gpu.node = 0;
    gpu.node = std::max(gpu.node, 0);
    const auto information = ReadFile(absl::StrCat(directory, "/", address, "/information"));
    for (absl::string_view line : absl::StrSplit(information.ok() ? *information : "", '\n')) {
      if (absl::ConsumePrefix(&line, "GPU UUID:")) {
        gpu.uuid = std::string(absl::StripAsciiWhitespace(line));
      }
    }
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

// The entry's place among `gpus`, or their number when the entry names none.
size_t FindGpu(const std::vector<Gpu>& gpus, absl::string_view entry) {
  size_t index = 0;
  if (absl::SimpleAtoi(entry, &index)) return std::min(index, gpus.size());
  if (!absl::StartsWith(entry, "GPU-")) return gpus.size();
  const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return absl::StartsWith(gpu.uuid, entry);  // CUDA takes an abbreviation, too.
  });
  return static_cast<size_t>(found - gpus.begin());
}

// The CPUs on which the calling thread may run. (hwloc could leave out the others, but gives up in
// silence where two threads of the process may run on different ones.)
std::set<int> AllowedCpus() {
  constexpr int kMostCpus = 1 << 16;
  cpu_set_t* const set = CPU_ALLOC(kMostCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kMostCpus);
  const absl::Cleanup free_set = [set] { CPU_FREE(set); };
  CPU_ZERO_S(bytes, set);
  std::set<int> allowed;
  if (sched_getaffinity(0, bytes, set) != 0) return allowed;
  for (int cpu = 0; cpu < kMostCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, bytes, set)) allowed.insert(cpu);
  }
  return allowed;
}

}  // namespace

absl::StatusOr<std::vector<NumaCpu>> ReadNumaCpus(const std::string& synthetic) {
  CONVENE_ASSIGN_OR_RETURN(const Hwloc hwloc, LoadHwloc());
  hwloc_topology_t topology = nullptr;
  if (hwloc.topology_init(&topology) != 0) return absl::InternalError("hwloc_topology_init");
  const absl::Cleanup destroy = [&] { hwloc.topology_destroy(topology); };
  if (!synthetic.empty() && hwloc.topology_set_synthetic(topology, synthetic.c_str()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("hwloc does not understand \"", synthetic, "\""));
  }
  if (hwloc.topology_load(topology) != 0) {
    return absl::UnavailableError("--numa-binding: hwloc cannot read this machine's topology");
  }
  const std::set<int> allowed = AllowedCpus();
  std::vector<NumaCpu> cpus;
  const int depth = hwloc.get_type_depth(topology, HWLOC_OBJ_PU);
  for (const hwloc_obj* unit = hwloc.get_obj_by_depth(topology, depth, 0); unit != nullptr;
       unit = unit->next_cousin) {
    if (!synthetic.empty() || allowed.count(static_cast<int>(unit->os_index)) > 0) {
      cpus.push_back(Locate(hwloc, unit));
    }
  }
  return cpus;
}

std::vector<int> DeviceNodes(const std::string& root,
                             const std::map<std::string, std::string>& environment) {
  const std::vector<Gpu> gpus = ReadGpus(root);
  std::vector<int> nodes;
  const auto visible = environment.find(contract::kCudaVisibleDevices);
  if (visible == environment.end()) {
    for (const Gpu& gpu : gpus) nodes.push_back(gpu.node);
    return nodes;
  }
  for (const absl::string_view entry : absl::StrSplit(visible->second, ',')) {
    const size_t index = FindGpu(gpus, absl::StripAsciiWhitespace(entry));
    if (index >= gpus.size()) break;
    nodes.push_back(gpus[index].node);
  }
  return nodes;
}

absl::StatusOr<std::vector<std::vector<int>>> BindWorkers(
    NumaBinding binding, const std::map<std::string, std::string>& environment, int workers) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<NumaCpu> cpus, ReadNumaCpus(""));
  return PlanNuma(binding, cpus, DeviceNodes("", environment), workers);
}

}  // namespace convene::agent
