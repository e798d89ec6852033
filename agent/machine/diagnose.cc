#include "agent/machine/diagnose.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kGibibyte = int64_t{1} << 30;
constexpr int64_t kFewOpenFiles = 4096;
constexpr int64_t kFewProcesses = 4096;
constexpr int kEthernetMtu = 1500;
// Of the machine's memory: a smaller reserve of huge pages is no finding.
constexpr int64_t kLargeReserveShare = 20;

using Findings = std::vector<Finding>;

std::string Limit(int64_t limit) { return limit == kUnlimited ? "unlimited" : absl::StrCat(limit); }

// Adds `good` where the last check added nothing.
void GoodUnless(size_t before, const std::string& subject, const std::string& good,
                Findings* findings) {
  if (findings->size() == before) findings->push_back({Severity::kGood, subject, good});
}

bool IsActive(const RdmaPort& port) { return port.state == "ACTIVE"; }

// Without GPUs no NCCL runs here: Gloo speaks TCP.
bool UsesRdma(const MachineFacts& facts) {
  const auto is_set = [&](const char* name, absl::string_view value) {
    const auto found = facts.environment.find(name);
    return found != facts.environment.end() && found->second == value;
  };
  return !facts.gpu_driver.gpus.empty() && !is_set("NCCL_IB_DISABLE", "1") &&
         !is_set("NCCL_NET", "Socket") &&
         std::any_of(facts.rdma_ports.begin(), facts.rdma_ports.end(), IsActive);
}

void CheckLimits(const MachineFacts& facts, Findings* findings) {
  const size_t before = findings->size();
  const Limits& limits = facts.limits;
  if (limits.locked_bytes != kUnlimited && UsesRdma(facts)) {
    findings->push_back({Severity::kError, "limits",
                         absl::StrCat("ulimit -l (locked memory) is ",
                                      HumanBytes(static_cast<double>(limits.locked_bytes))),
                         "NCCL registers its buffers with the network card, which locks them",
                         "set memlock to unlimited in /etc/security/limits.conf, in Slurm by "
                         "PropagateResourceLimits, in a container by --ulimit memlock=-1"});
  }
  if (limits.open_files != kUnlimited && limits.open_files < kFewOpenFiles) {
    findings->push_back({Severity::kWarning, "limits",
                         absl::StrCat("ulimit -n (open files) is ", limits.open_files),
                         "each rank has connections to many others, and each loader its files",
                         "raise it: ulimit -n 65536, or LimitNOFILE of the service"});
  }
  if (limits.processes != kUnlimited && limits.processes < kFewProcesses) {
    findings->push_back({Severity::kWarning, "limits",
                         absl::StrCat("ulimit -u (processes and threads) is ", limits.processes),
                         "each worker starts tens of threads, and each loader processes",
                         "raise it: ulimit -u 65536"});
  }
  GoodUnless(before, "limits",
             absl::StrCat("open files ", Limit(limits.open_files), ", processes ",
                          Limit(limits.processes), ", locked memory ",
                          limits.locked_bytes == kUnlimited
                              ? "unlimited"
                              : HumanBytes(static_cast<double>(limits.locked_bytes))),
             findings);
}

void CheckMemory(const MachineFacts& facts, Findings* findings) {
  const std::string what = absl::StrCat(HumanBytes(static_cast<double>(facts.available_bytes)),
                                        " of ", HumanBytes(static_cast<double>(facts.memory_bytes)),
                                        " are free, for ", facts.cpus, " CPUs");
  if (facts.available_bytes * 10 < facts.memory_bytes) {
    findings->push_back({Severity::kWarning, "memory", what,
                         "the kernel kills a worker that asks for more than there is",
                         "see what holds it: ps aux --sort -rss | head"});
  } else {
    findings->push_back({Severity::kGood, "memory", what});
  }
  if (facts.huge_pages == "never") {
    findings->push_back({Severity::kNote, "memory", "transparent huge pages are off",
                         "large buffers are then mapped in pages of 4 KiB, which is slower",
                         "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  if (facts.free_huge_bytes > facts.memory_bytes / kLargeReserveShare) {
    findings->push_back(
        {Severity::kNote, "memory",
         absl::StrCat(HumanBytes(static_cast<double>(facts.free_huge_bytes)),
                      " of the memory are reserved as huge pages, and no program holds them"),
         "neither training nor the file cache can use memory that is reserved so",
         "sysctl vm.nr_hugepages=0, unless a library here asks for them (EFA's libfabric does)"});
  }
}

void CheckFolder(const Folder& folder, const std::string& subject, int64_t least, Findings* out) {
  const std::string free =
      absl::StrCat(folder.path, " has ", HumanBytes(static_cast<double>(folder.free_bytes)),
                   " free of ", HumanBytes(static_cast<double>(folder.total_bytes)));
  if (!folder.error.empty()) {
    // A job need not write where it was started; a folder that was named is wanted.
    const bool is_wanted = folder.path != kCurrentFolder;
    out->push_back({is_wanted ? Severity::kError : Severity::kNote, subject, folder.error,
                    "a file could not be written, read and removed there",
                    "check that it is mounted, not full, and writable for this user"});
  } else if (folder.free_bytes < least) {
    out->push_back({Severity::kWarning, subject, free, "checkpoints and logs need more",
                    "remove what is not needed, or name another folder"});
  } else {
    out->push_back({Severity::kGood, subject, free});
  }
}

void CheckFolders(const MachineFacts& facts, Findings* findings) {
  for (const Folder& folder : facts.folders) CheckFolder(folder, "disk", kGibibyte, findings);
  const Folder& shared = facts.shared_memory;
  if (shared.error.empty() && shared.total_bytes < kGibibyte) {
    findings->push_back(
        {Severity::kWarning, "shared memory",
         absl::StrCat("/dev/shm has ", HumanBytes(static_cast<double>(shared.total_bytes))),
         "NCCL's ranks of one node and PyTorch's loaders exchange data there; a "
         "bus error is what follows",
         "docker run --shm-size=16g or --ipc=host; in Kubernetes an emptyDir of "
         "medium Memory at /dev/shm"});
    return;
  }
  CheckFolder(shared, "shared memory", 64 * kMebibyte, findings);
}

void CheckClock(const MachineFacts& facts, Findings* findings) {
  if (!facts.clock_is_synchronised.has_value()) return;
  if (*facts.clock_is_synchronised) {
    findings->push_back({Severity::kGood, "clock", "synchronised"});
    return;
  }
  findings->push_back({Severity::kNote, "clock", "no time service keeps this machine's clock",
                       "lines of several nodes' logs cannot be put in order by their times",
                       "run chrony or systemd-timesyncd (inside a VM the host may do it)"});
}

void CheckName(const MachineFacts& facts, Findings* findings) {
  const size_t before = findings->size();
  const auto is_loopback = [](const std::string& address) {
    return absl::StartsWith(address, "127.") || address == "::1";
  };
  if (!facts.name_error.empty()) {
    findings->push_back({Severity::kWarning, "name", facts.name_error,
                         "Gloo and many scripts look up the host's own name to find its address",
                         "add the name to /etc/hosts or DNS, or set GLOO_SOCKET_IFNAME"});
  } else if (!facts.name_addresses.empty() &&
             std::all_of(facts.name_addresses.begin(), facts.name_addresses.end(), is_loopback)) {
    findings->push_back(
        {Severity::kNote, "name",
         absl::StrCat(facts.host, " is ", absl::StrJoin(facts.name_addresses, ", "), " here"),
         "a script that gives its address away by its name gives one that no other machine reaches",
         "name the machine's address in /etc/hosts, or set GLOO_SOCKET_IFNAME"});
  }
  if (facts.name_seconds > 1) {
    findings->push_back(
        {Severity::kWarning, "name",
         absl::StrFormat("looking up %s took %.1f s", facts.host, facts.name_seconds),
         "every connection of every rank may wait as long",
         "mend /etc/resolv.conf: its first server does not answer"});
  }
  GoodUnless(before, "name",
             absl::StrCat(facts.host, " is ", absl::StrJoin(facts.name_addresses, ", ")), findings);
}

bool IsUsable(const Interface& interface) {
  return interface.is_up && !interface.addresses.empty() && interface.name != "lo";
}

void CheckInterfaces(const MachineFacts& facts, Findings* findings) {
  std::vector<std::string> real;
  for (const Interface& each : facts.interfaces) {
    if (!IsUsable(each)) continue;
    const std::string speed = each.megabits > 0 ? absl::StrCat(", ", each.megabits, " Mb/s") : "";
    const std::string what =
        absl::StrCat(each.name, " (", each.addresses.front(), ", MTU ", each.mtu, speed, ")");
    if (each.mtu < kEthernetMtu) {
      findings->push_back({Severity::kWarning, "network", what,
                           "small packets cost time, and a tunnel that cuts them loses some",
                           "ip link set " + each.name + " mtu 1500, where no tunnel needs less"});
    } else if (each.megabits > 0 && each.megabits < 10'000 && !each.is_virtual) {
      findings->push_back({Severity::kNote, "network", what,
                           "gradients of a model of many GB take seconds over it",
                           "prefer pipeline stages over it to data-parallel copies"});
    } else {
      findings->push_back({Severity::kGood, "network", what});
    }
    if (!each.is_virtual) real.push_back(each.name);
  }
  const bool is_chosen = facts.environment.contains("NCCL_SOCKET_IFNAME");
  if (real.size() > 1 && !is_chosen) {
    findings->push_back(
        {Severity::kNote, "network",
         absl::StrCat("several interfaces are up: ", absl::StrJoin(real, ", ")),
         "NCCL takes the first that is no docker0 and no lo, Gloo that of the host's name",
         absl::StrCat("set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the one that reaches the "
                      "other nodes, for example ",
                      real.front())});
  }
  // Each machine has a loopback interface: an empty list is one that could not be read.
  if (!facts.interfaces.empty() &&
      std::none_of(facts.interfaces.begin(), facts.interfaces.end(), IsUsable)) {
    findings->push_back({Severity::kNote, "network", "only the loopback interface is up",
                         "a job can have no other node", "ip link; or the container's --network"});
  }
}

void CheckRdma(const MachineFacts& facts, Findings* findings) {
  const bool has_gpus = !facts.gpu_driver.gpus.empty();
  bool is_any_active = false;
  for (const RdmaPort& port : facts.rdma_ports) {
    const std::string name = absl::StrCat(port.device, ":", port.port);
    if (!IsActive(port)) {
      findings->push_back(
          {Severity::kWarning, "RDMA", absl::StrCat(name, " is ", port.state, ", not ACTIVE"),
           "NCCL leaves it out, and its GPUs share the other cards",
           "check the cable and the switch; or leave it out by NCCL_IB_HCA=^" + port.device});
      continue;
    }
    is_any_active = true;
    const auto best = std::find_if(port.gids.begin(), port.gids.end(), [](const Gid& gid) {
      return gid.type == "RoCE v2" && gid.is_ipv4;
    });
    if (port.is_ethernet && best == port.gids.end()) {
      findings->push_back({Severity::kWarning, "RDMA",
                           absl::StrCat(name, " has no RoCE v2 address over IPv4"),
                           "RoCE v1 is not routed between networks",
                           "give its interface an IPv4 address; then see show_gids"});
    } else {
      const std::string gid =
          port.is_ethernet ? absl::StrCat(", RoCE v2 at GID index ", best->index) : "";
      findings->push_back({Severity::kGood, "RDMA", absl::StrCat(name, ", ", port.rate, gid)});
    }
  }
  const std::set<std::string> modules(facts.modules.begin(), facts.modules.end());
  if (is_any_active && has_gpus && !modules.contains("nvidia_peermem") &&
      !modules.contains("nv_peer_mem")) {
    findings->push_back({Severity::kNote, "RDMA", "the module nvidia_peermem is not loaded",
                         "where kernel or driver have no dma-buf either, data between GPU and "
                         "network go through the host's memory",
                         "modprobe nvidia_peermem; NCCL_DEBUG=INFO says GDRDMA where it works"});
  }
}

// By NVIDIA's names of cards: between them NVLinks are a bridge, which many machines lack.
bool IsCard(const std::string& name) {
  constexpr const char* kCards[] = {"PCI", " NVL", "RTX", " A40", "GeForce", "Quadro", "TITAN"};
  return std::any_of(std::begin(kCards), std::end(kCards),
                     [&](const char* mark) { return absl::StrContains(name, mark); });
}

Findings SlowdownFindings(const Slowdown& slowdown, const std::string& subject) {
  Findings findings;
  const auto add = [&](bool is_so, Severity severity, const std::string& what,
                       const std::string& why, const std::string& advice) {
    if (is_so) findings.push_back({severity, subject, what, why, advice});
  };
  constexpr char kOthersWait[] = "all other ranks wait for it";
  add(slowdown.by_heat, Severity::kWarning, "it is slowed down by heat", kOthersWait,
      "check its fans, its coolant and the room: nvidia-smi -q -d TEMPERATURE");
  add(slowdown.by_power_brake, Severity::kWarning, "it is slowed down by the power brake",
      "the machine's power supply cannot feed its GPUs, and all other ranks wait for it",
      "check the power supplies and the rack's power cap, in the BMC");
  add(slowdown.by_hardware, Severity::kWarning, "its hardware slows it down", kOthersWait,
      "nvidia-smi -q -d PERFORMANCE; check its cooling and its power");
  add(slowdown.by_power_limit, Severity::kNote, "its power limit holds its clocks down",
      "under full load that is usual; while nothing runs the limit is low",
      "compare nvidia-smi -q -d POWER with the other GPUs: -pl WATTS sets the limit");
  add(slowdown.by_clock_setting, Severity::kNote, "somebody has set its clocks",
      "a GPU with lower clocks than the others holds them up", "nvidia-smi -rac and -rgc undo it");
  return findings;
}

void CheckFabric(const Gpu& gpu, const std::string& subject, Findings* findings) {
  constexpr char kNoCuda[] = "no program can use it until then (CUDA's error 802)";
  const auto add = [&](Severity severity, const std::string& what, const std::string& why,
                       const std::string& advice) {
    findings->push_back({severity, subject, what, why, advice});
  };
  if (gpu.fabric == FabricState::kNotStarted) {
    add(Severity::kError, "its NVLink fabric has not been started", kNoCuda,
        "systemctl start nvidia-fabricmanager (of the driver's version); GB200: nvidia-imex, and "
        "the switches' NMX");
  }
  if (gpu.fabric == FabricState::kInProgress) {
    add(Severity::kWarning, "its NVLink fabric is still being set up", kNoCuda,
        "wait a minute; then journalctl -u nvidia-fabricmanager");
  }
  if (gpu.fabric_error != 0) {
    add(Severity::kError,
        absl::StrCat("its NVLink fabric could not be set up: NVML's error ", gpu.fabric_error),
        "it reaches no other GPU by NVLink, and most jobs do not start",
        "journalctl -u nvidia-fabricmanager; then reset the GPUs and switches, or reboot");
  }
}

// GPUs of one machine that do not reach each other by NVLink, though each has a fabric.
void CheckDomains(const std::vector<Gpu>& gpus, Findings* findings) {
  std::set<std::string> domains, parts;
  for (const Gpu& gpu : gpus) {
    if (gpu.cluster_uuid.empty()) continue;
    domains.insert(gpu.cluster_uuid);
    parts.insert(absl::StrCat(gpu.cluster_uuid, " ", gpu.clique));
  }
  if (parts.size() < 2) return;
  const std::string what =
      domains.size() > 1
          ? absl::StrCat("they are in ", domains.size(), " NVLink domains (ClusterUUID)")
          : absl::StrCat("they are in ", parts.size(), " cliques of one NVLink domain");
  findings->push_back({Severity::kWarning, "GPUs", what,
                       "GPUs of different ones reach each other by PCIe and the network alone",
                       "look at the partitions of nvidia-fabricmanager or NMX: nvidia-smi -q shows "
                       "each GPU's ClusterUUID and CliqueId"});
}

// `has_links`: a GPU of this machine has an NVLink that is up. Where no card has, no bridge is
// there, and the links are down by right.
void CheckGpu(const Gpu& gpu, const std::string& subject, bool has_links, Findings* findings) {
  const size_t before = findings->size();
  const auto add = [&](Severity severity, const std::string& what, const std::string& why,
                       const std::string& advice) {
    findings->push_back({severity, subject, what, why, advice});
  };
  if (gpu.remapping_failed) {
    add(Severity::kError, "rows of its memory could not be replaced", "it gives wrong results",
        "take the GPU out of service and return it");
  }
  if (gpu.needs_reset) {
    add(Severity::kError, "memory is waiting to be retired", "the next error there ends the job",
        "drain the node and reset the GPU: nvidia-smi --gpu-reset -i N");
  }
  if (gpu.uncorrected_errors.value_or(0) > 0) {
    add(Severity::kWarning,
        absl::StrCat(*gpu.uncorrected_errors, " uncorrected memory errors since the driver began"),
        "each ended the program that met it", "reset it; where they return, run dcgmi diag -r 3");
  }
  for (Finding& finding : SlowdownFindings(gpu.slowdown, subject)) {
    findings->push_back(std::move(finding));
  }
  CheckFabric(gpu, subject, findings);
  if (gpu.links_down > 0 && (has_links || !IsCard(gpu.name))) {
    add(Severity::kWarning,
        absl::StrCat(gpu.links_down, " of ", gpu.links_up + gpu.links_down, " NVLinks are down"),
        "its traffic takes fewer links, or PCIe", "nvidia-smi nvlink --status; reseat or return");
  }
  if (!gpu.is_persistent) {
    add(Severity::kNote, "persistence mode is off",
        "the driver starts anew with each job: seconds, and settings are lost",
        "systemctl enable --now nvidia-persistenced");
  }
  if (gpu.used_bytes * 20 > gpu.memory_bytes && gpu.memory_bytes > 0) {
    add(Severity::kNote,
        absl::StrCat(HumanBytes(static_cast<double>(gpu.used_bytes)), " of ",
                     HumanBytes(static_cast<double>(gpu.memory_bytes)), " are in use"),
        "another program holds them, and a model may not fit", "nvidia-smi shows which");
  }
  GoodUnless(before, subject,
             absl::StrCat(gpu.name, ", ", HumanBytes(static_cast<double>(gpu.memory_bytes)),
                          gpu.links_up > 0 ? absl::StrCat(", ", gpu.links_up, " NVLinks") : ""),
             findings);
}

void CheckGpus(const MachineFacts& facts, Findings* findings) {
  const GpuDriver& driver = facts.gpu_driver;
  if (!driver.error.empty()) {
    findings->push_back({Severity::kError, "GPUs",
                         absl::StrCat(driver.device_files, " device files, but ", driver.error),
                         "no program can use a GPU here",
                         "in a container: --gpus all and NVIDIA's container toolkit; else "
                         "reinstall the driver, or reboot after its update"});
    return;
  }
  if (driver.gpus.empty()) {
    findings->push_back({Severity::kNote, "GPUs", "none", "training runs on the CPUs", ""});
    return;
  }
  findings->push_back({Severity::kGood, "GPUs",
                       absl::StrCat(driver.gpus.size(), ", driver ", driver.version,
                                    ", up to CUDA ", driver.cuda)});
  CheckDomains(driver.gpus, findings);
  const bool has_links = std::any_of(driver.gpus.begin(), driver.gpus.end(),
                                     [](const Gpu& gpu) { return gpu.links_up > 0; });
  for (size_t i = 0; i < driver.gpus.size(); ++i) {
    const Gpu& gpu = driver.gpus[i];
    CheckGpu(gpu, absl::StrCat("GPU ", i), has_links, findings);
    const bool has_near_card =
        std::any_of(facts.rdma_ports.begin(), facts.rdma_ports.end(),
                    [&](const RdmaPort& port) { return port.numa_node == gpu.numa_node; });
    if (!facts.rdma_ports.empty() && gpu.numa_node >= 0 && !has_near_card) {
      findings->push_back({Severity::kNote, absl::StrCat("GPU ", i),
                           absl::StrCat("no RDMA card is on its NUMA node ", gpu.numa_node),
                           "its network traffic crosses between the processors' sockets", ""});
    }
  }
}

void CheckGpuErrors(const MachineFacts& facts, Findings* findings) {
  for (const std::string& line : facts.gpu_errors) {
    findings->push_back({Severity::kWarning, "kernel log", Utf8(line, 200),
                         "the driver met an error of a GPU",
                         "look its number up in NVIDIA's list of Xid errors"});
  }
}

}  // namespace

std::vector<Finding> Diagnose(const MachineFacts& facts) {
  Findings findings;
  CheckGpus(facts, &findings);
  CheckGpuErrors(facts, &findings);
  CheckInterfaces(facts, &findings);
  CheckRdma(facts, &findings);
  CheckName(facts, &findings);
  CheckMemory(facts, &findings);
  CheckFolders(facts, &findings);
  CheckLimits(facts, &findings);
  CheckClock(facts, &findings);
  for (Finding& finding : DiagnoseEnvironment(facts)) findings.push_back(std::move(finding));
  return findings;
}

Severity WorstOf(const std::vector<Finding>& findings) {
  Severity worst = Severity::kGood;
  for (const Finding& finding : findings) worst = std::max(worst, finding.severity);
  return worst;
}

}  // namespace convene::agent
