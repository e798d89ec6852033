// Facts about one machine that decide whether training runs well on it: plain values, read by
// read_facts.h and judged by diagnose.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace convene::agent {

inline constexpr int64_t kUnlimited = -1;
inline constexpr char kCurrentFolder[] = ".";

// Soft ones of getrlimit(2), or kUnlimited.
struct Limits {
  int64_t locked_bytes = kUnlimited;  // also where CAP_IPC_LOCK makes the limit void
  int64_t open_files = kUnlimited;
  int64_t processes = kUnlimited;
};

struct Folder {
  std::string path;
  std::string error;  // "": it is there, and a file could be written, read and removed
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;
};

struct Interface {
  std::string name;
  bool is_up = false;       // and has a carrier
  bool is_virtual = false;  // a bridge, a container's pair, a tunnel: no device behind it
  int mtu = 0;
  int64_t megabits = 0;  // 0: it does not say
  int numa_node = -1;    // -1: unknown
  std::vector<std::string> addresses;
};

struct Gid {
  int index = 0;
  std::string type;       // "RoCE v2", "IB/RoCE v1"
  bool is_ipv4 = false;   // ::ffff:a.b.c.d
  std::string interface;  // the network interface behind it, "" where there is none
};

struct RdmaPort {
  std::string device;  // "mlx5_0"
  int port = 1;
  std::string state;  // "ACTIVE", "DOWN", ...
  std::string rate;   // "400 Gb/sec (4X NDR)"
  bool is_ethernet = false;
  int numa_node = -1;
  std::vector<Gid> gids;  // that are set
};

// Why a GPU's clocks are lower than its load would have them, by its driver.
struct Slowdown {
  bool by_heat = false;
  bool by_power_brake = false;  // the machine's power supply asked for it
  bool by_hardware = false;     // and the driver tells nothing closer
  bool by_power_limit = false;  // usual under load
  bool by_clock_setting = false;
};

// The NVLink switches' fabric, as the GPU's driver has it.
enum class FabricState { kNone, kNotStarted, kInProgress, kCompleted };

struct Gpu {
  std::string name;
  std::string uuid;
  std::string pci_address;  // "0000:3b:00.0"
  int numa_node = -1;
  int64_t memory_bytes = 0;
  int64_t used_bytes = 0;
  std::optional<int64_t> uncorrected_errors;  // of ECC since the driver was loaded
  bool needs_reset = false;                   // for pages or rows to be retired
  bool remapping_failed = false;
  Slowdown slowdown;
  bool is_persistent = true;
  int links_up = 0;  // of NVLink
  int links_down = 0;
  FabricState fabric = FabricState::kNone;
  int fabric_error = 0;      // NVML's number for why a completed fabric is of no use; 0: it is
  std::string cluster_uuid;  // of its NVLink domain over nodes; "" outside of one
  int clique = 0;            // the part of the domain whose GPUs reach each other
};

struct GpuDriver {
  int device_files = 0;  // /dev/nvidia<N>
  std::string version;   // "" where NVML does not answer
  std::string cuda;      // the newest that the driver can run, "13.0"
  std::string error;     // why NVML does not answer; "" where it does, or no GPU is looked for
  std::vector<Gpu> gpus;
};

struct MachineFacts {
  std::string host;
  int cpus = 0;  // that this process may keep busy
  int64_t memory_bytes = 0;
  int64_t available_bytes = 0;
  Limits limits;
  std::vector<Folder> folders;
  Folder shared_memory;         // /dev/shm
  std::string huge_pages;       // transparent ones: "always", "madvise", "never", "" unknown
  int64_t free_huge_bytes = 0;  // reserved as huge pages (hugetlbfs), and held by no program
  std::optional<bool> clock_is_synchronised;
  std::vector<std::string> name_addresses;  // of the host's own name
  std::string name_error;
  double name_seconds = 0;
  std::vector<Interface> interfaces;
  std::vector<RdmaPort> rdma_ports;
  std::vector<std::string> modules;     // of the kernel
  std::vector<std::string> gpu_errors;  // the driver's last Xid lines of the kernel's log
  std::map<std::string, std::string> environment;
  GpuDriver gpu_driver;
  std::string nccl;  // the version of the library that programs of this machine load, "" for none
};

}  // namespace convene::agent
