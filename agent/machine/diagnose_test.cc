#include "agent/machine/diagnose.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"

namespace convene::agent {
namespace {

constexpr int64_t kGibibyte = int64_t{1} << 30;

Gpu GoodGpu() {
  return {.name = "NVIDIA H100 80GB HBM3",
          .numa_node = 0,
          .memory_bytes = 80 * kGibibyte,
          .uncorrected_errors = 0,
          .links_up = 18};
}

// A node as one wishes it.
MachineFacts GoodMachine() {
  MachineFacts facts = {.host = "node7", .cpus = 96, .memory_bytes = 1000, .available_bytes = 900};
  facts.limits = {.locked_bytes = kUnlimited, .open_files = 65536, .processes = kUnlimited};
  facts.folders = {
      {.path = "/data", .total_bytes = 900 * kGibibyte, .free_bytes = 500 * kGibibyte}};
  facts.shared_memory = {
      .path = "/dev/shm", .total_bytes = 64 * kGibibyte, .free_bytes = 64 * kGibibyte};
  facts.huge_pages = "madvise";
  facts.free_huge_bytes = 50;  // 5 % of the memory
  facts.clock_is_synchronised = true;
  facts.name_addresses = {"10.0.0.7"};
  facts.interfaces = {
      {.name = "lo", .is_up = true, .mtu = 65536, .addresses = {"127.0.0.1"}},
      {.name = "eth0", .is_up = true, .mtu = 9000, .megabits = 100'000, .addresses = {"10.0.0.7"}}};
  facts.rdma_ports = {{.device = "mlx5_0",
                       .state = "ACTIVE",
                       .rate = "400 Gb/sec (4X NDR)",
                       .numa_node = 0,
                       .gids = {{.index = 0, .type = "IB/RoCE v1"}}}};
  facts.modules = {"nvidia", "nvidia_peermem"};
  facts.gpu_driver = {
      .device_files = 1, .version = "580.65.06", .cuda = "13.0", .gpus = {GoodGpu()}};
  return facts;
}

// The findings that are not good, as "severity subject: what".
std::vector<std::string> Bad(const MachineFacts& facts) {
  const char* const words[] = {"good", "note", "warning", "error"};
  std::vector<std::string> bad;
  for (const Finding& finding : Diagnose(facts)) {
    if (finding.severity == Severity::kGood) continue;
    CHECK_FALSE(finding.why.empty());
    bad.push_back(absl::StrCat(words[static_cast<int>(finding.severity)], " ", finding.subject,
                               ": ", finding.what));
  }
  return bad;
}

void CheckBad(const MachineFacts& facts, const std::vector<std::string>& wanted) {
  const std::vector<std::string> bad = Bad(facts);
  REQUIRE(bad.size() == wanted.size());
  for (size_t i = 0; i < bad.size(); ++i) {
    INFO(bad[i]);
    CHECK(absl::StrContains(bad[i], wanted[i]));
  }
}

TEST_CASE("a good machine has good findings alone, one for each subject") {
  const std::vector<Finding> findings = Diagnose(GoodMachine());
  CHECK(WorstOf(findings) == Severity::kGood);
  std::string subjects;
  for (const Finding& finding : findings) absl::StrAppend(&subjects, finding.subject, "; ");
  CHECK(subjects ==
        "GPUs; GPU 0; network; RDMA; name; memory; disk; shared memory; limits; clock; "
        "environment; ");
  CHECK(WorstOf({}) == Severity::kGood);
}

TEST_CASE("GPUs") {
  MachineFacts facts = GoodMachine();
  facts.gpu_driver.gpus[0].needs_reset = true;
  facts.gpu_driver.gpus[0].remapping_failed = true;
  facts.gpu_driver.gpus[0].uncorrected_errors = 3;
  facts.gpu_driver.gpus[0].slowdown.by_hardware = true;
  facts.gpu_driver.gpus[0].links_down = 2;
  facts.gpu_driver.gpus[0].is_persistent = false;
  facts.gpu_driver.gpus[0].used_bytes = 5 * kGibibyte;
  facts.gpu_driver.gpus[0].numa_node = 1;
  facts.gpu_errors = {"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."};
  CheckBad(facts, {"error GPU 0: rows", "error GPU 0: memory is waiting", "warning GPU 0: 3 uncorr",
                   "warning GPU 0: its hardware", "warning GPU 0: 2 of 20 NVLinks",
                   "note GPU 0: persistence", "note GPU 0: 5.0 GiB of 80.0 GiB",
                   "note GPU 0: no RDMA card is on its NUMA node 1", "warning kernel log: NVRM"});
  facts = GoodMachine();  // Its switches did not start.
  facts.gpu_driver.gpus[0].links_up = 0;
  facts.gpu_driver.gpus[0].links_down = 12;
  CheckBad(facts, {"warning GPU 0: 12 of 12 NVLinks"});
  // A card with the connector and no bridge: all its links are down.
  for (const char* const name : {"NVIDIA A100-PCIE-40GB", "NVIDIA H100 PCIe", "NVIDIA RTX A6000"}) {
    facts.gpu_driver.gpus[0].name = name;
    CheckBad(facts, {});
  }
  facts.gpu_driver.gpus.push_back(GoodMachine().gpu_driver.gpus[0]);  // It lost them all.
  CheckBad(facts, {"warning GPU 0: 12 of 12 NVLinks"});
  facts = GoodMachine();
  facts.gpu_driver = {.device_files = 8, .error = "the driver does not answer"};
  CheckBad(facts, {"error GPUs: 8 device files, but the driver does not answer"});
  facts.gpu_driver = {};
  CheckBad(facts, {"note GPUs: none"});
}

TEST_CASE("what slows a GPU down is told apart") {
  const auto check = [](bool Slowdown::*reason, const std::string& wanted) {
    MachineFacts facts = GoodMachine();
    facts.gpu_driver.gpus[0].slowdown.*reason = true;
    CheckBad(facts, {wanted});
  };
  check(&Slowdown::by_heat, "warning GPU 0: it is slowed down by heat");
  check(&Slowdown::by_power_brake, "warning GPU 0: it is slowed down by the power brake");
  check(&Slowdown::by_hardware, "warning GPU 0: its hardware slows it down");
  check(&Slowdown::by_power_limit, "note GPU 0: its power limit");
  check(&Slowdown::by_clock_setting, "note GPU 0: somebody has set its clocks");
}

TEST_CASE("the NVLink fabric of a machine") {
  MachineFacts facts = GoodMachine();
  std::vector<Gpu>& gpus = facts.gpu_driver.gpus;
  gpus.push_back(GoodGpu());
  gpus[1].fabric = FabricState::kNotStarted;
  CheckBad(facts, {"error GPU 1: its NVLink fabric has not been started"});
  gpus[1].fabric = FabricState::kInProgress;
  CheckBad(facts, {"warning GPU 1: its NVLink fabric is still being set up"});
  gpus[1].fabric = FabricState::kCompleted;
  gpus[1].fabric_error = 999;
  CheckBad(facts, {"error GPU 1: its NVLink fabric could not be set up: NVML's error 999"});
  gpus[1].fabric_error = 0;
  gpus[0].cluster_uuid = gpus[1].cluster_uuid = "ab01";
  CheckBad(facts, {});
  gpus[1].clique = 2;
  CheckBad(facts, {"warning GPUs: they are in 2 cliques of one NVLink domain"});
  gpus[1].cluster_uuid = "ab02";
  CheckBad(facts, {"warning GPUs: they are in 2 NVLink domains (ClusterUUID)"});
}

TEST_CASE("network and names") {
  MachineFacts facts = GoodMachine();
  facts.interfaces.push_back(
      {.name = "eth1", .is_up = true, .mtu = 1400, .megabits = 1000, .addresses = {"10.1.0.7"}});
  facts.interfaces.push_back({.name = "docker0",
                              .is_up = true,
                              .is_virtual = true,
                              .mtu = 1500,
                              .addresses = {"172.17.0.1"}});
  CheckBad(facts, {"warning network: eth1 (10.1.0.7, MTU 1400", "note network: several"});
  facts.environment = {{"NCCL_SOCKET_IFNAME", "eth0"}};
  facts.interfaces[2].mtu = 1500;
  CheckBad(facts, {"note network: eth1 (10.1.0.7, MTU 1500, 1000 Mb/s"});
  facts = GoodMachine();
  facts.interfaces[1].is_up = false;
  CheckBad(facts, {"note network: only the loopback"});
  facts.interfaces.clear();  // /sys cannot be read.
  facts.environment = {{"NCCL_SOCKET_IFNAME", "eth0"}, {"GLOO_SOCKET_IFNAME", "eth0"}};
  CheckBad(facts, {});
  facts = GoodMachine();
  facts.name_addresses = {"127.0.1.1"};
  CheckBad(facts, {"note name: node7 is 127.0.1.1 here"});
  facts.name_addresses = {"127.0.1.1", "10.0.0.7"};
  CheckBad(facts, {});
  facts.name_error = "node7: no such host";
  facts.name_seconds = 5;
  CheckBad(facts, {"warning name: node7: no such host", "warning name: looking up node7 took 5.0"});
}

TEST_CASE("RDMA") {
  MachineFacts facts = GoodMachine();
  facts.limits.locked_bytes = 65536;
  CheckBad(facts, {"error limits: ulimit -l (locked memory) is 64.0 KiB"});
  facts.environment = {{"NCCL_IB_DISABLE", "1"}};
  CheckBad(facts, {"warning environment: NCCL_IB_DISABLE=1"});
  facts.environment = {{"NCCL_NET", "Socket"}};
  CheckBad(facts, {"warning environment: NCCL_NET=Socket"});
  facts.environment.clear();
  const GpuDriver gpus = std::exchange(facts.gpu_driver, {});
  CheckBad(facts, {"note GPUs: none"});
  facts.gpu_driver = gpus;
  facts.rdma_ports[0].state = "DOWN";  // a card of the board that nobody plugged in
  CheckBad(facts, {"warning RDMA: mlx5_0:1 is DOWN"});
  facts.rdma_ports.clear();
  CheckBad(facts, {});
  facts = GoodMachine();
  facts.modules = {"nvidia"};
  CheckBad(facts, {"note RDMA: the module nvidia_peermem"});
  facts.gpu_driver = {};
  CheckBad(facts, {"note GPUs: none"});
  facts = GoodMachine();
  facts.rdma_ports[0].state = "DOWN";
  CheckBad(facts, {"warning RDMA: mlx5_0:1 is DOWN"});
  facts = GoodMachine();
  facts.rdma_ports[0].is_ethernet = true;
  CheckBad(facts, {"warning RDMA: mlx5_0:1 has no RoCE v2 address"});
  facts.rdma_ports[0].gids.push_back({.index = 3, .type = "RoCE v2", .is_ipv4 = true});
  CheckBad(facts, {});
}

TEST_CASE("memory, disks, limits, clock") {
  MachineFacts facts = GoodMachine();
  facts.available_bytes = 99;
  facts.huge_pages = "never";
  facts.free_huge_bytes = 51;
  facts.limits.open_files = 1024;
  facts.limits.processes = 1000;
  facts.clock_is_synchronised = false;
  facts.shared_memory.total_bytes = 64 << 20;
  facts.folders = {{.path = "/full", .total_bytes = 9, .free_bytes = 1},
                   {.path = "/none", .error = "/none: No such file or directory"},
                   {.path = ".", .error = "./x: Read-only file system"}};
  CheckBad(facts, {"warning memory", "note memory: transparent",
                   "note memory: 51 B of the memory are reserved", "warning disk: /full",
                   "error disk: /none: No such", "note disk: ./x",
                   "warning shared memory: /dev/shm has 64.0 MiB", "warning limits: ulimit -n",
                   "warning limits: ulimit -u", "note clock"});
}

TEST_CASE("variables that are obsolete, misspelt, wrong or costly") {
  const auto check = [](const std::string& name, const std::string& value,
                        const std::vector<std::string>& wanted) {
    INFO(name << "=" << value);
    MachineFacts facts = GoodMachine();
    facts.environment = {{name, value}};
    CheckBad(facts, wanted);
  };
  check("NCCL_ASYNC_ERROR_HANDLING", "1", {"warning environment: NCCL_ASYNC_ERROR_HANDLING=1"});
  check("NCCL_IBEXT_DISABLE", "1", {"warning environment: NCCL_IBEXT"});
  check("NCCL_SOCKET_IFNMAE", "eth0", {"note environment: NCCL_SOCKET_IFNMAE"});
  check("NCCL_IB_OOO_RQ", "1", {});
  check("NCCL_DEBUG", "info", {});
  check("NCCL_DEBUG", "LOUD", {"warning environment: NCCL_DEBUG=LOUD"});
  check("NCCL_ALGO", "^Ring,tree", {});
  check("NCCL_ALGO", "Ring,Star", {"warning environment: NCCL_ALGO=Ring,Star"});
  check("NCCL_ALGO", "allreduce:star", {});
  check("NCCL_NET_GDR_LEVEL", "SYS", {});
  check("NCCL_PROTO", "LL256", {"warning environment: NCCL_PROTO"});
  check("NCCL_P2P_DISABLE", "1", {"warning environment: NCCL_P2P_DISABLE=1"});
  check("NCCL_P2P_DISABLE", "0", {});
  check("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", {"warning environment: TORCH_NCCL"});
  check("NCCL_IB_DISABLE", "1", {"warning environment: NCCL_IB_DISABLE=1"});
  check("NCCL_NET", "Socket", {"warning environment: NCCL_NET=Socket"});
}

TEST_CASE("variables that name interfaces and cards") {
  const auto is_good = [](const std::string& name, const std::string& value) {
    MachineFacts facts = GoodMachine();
    facts.interfaces.push_back({.name = "down0", .addresses = {"10.9.0.1"}});
    facts.rdma_ports[0].gids.push_back({.index = 3, .type = "RoCE v2", .is_ipv4 = true});
    facts.environment = {{name, value}};
    const Severity worst = WorstOf(DiagnoseEnvironment(facts));
    CHECK((worst == Severity::kGood || worst == Severity::kError));
    return worst == Severity::kGood;
  };
  CHECK(is_good("NCCL_SOCKET_IFNAME", "eth"));
  CHECK(is_good("NCCL_SOCKET_IFNAME", "ib,eth0"));
  CHECK(is_good("NCCL_SOCKET_IFNAME", "=eth0"));
  CHECK(is_good("NCCL_SOCKET_IFNAME", "^lo,docker"));
  CHECK_FALSE(is_good("NCCL_SOCKET_IFNAME", "=eth"));
  CHECK_FALSE(is_good("NCCL_SOCKET_IFNAME", "ib0"));
  CHECK_FALSE(is_good("NCCL_SOCKET_IFNAME", "down0"));
  CHECK_FALSE(is_good("NCCL_SOCKET_IFNAME", "^lo,eth"));
  CHECK(is_good("GLOO_SOCKET_IFNAME", "eth0"));
  CHECK(is_good("GLOO_SOCKET_IFNAME", "lo,eth0"));
  CHECK_FALSE(is_good("GLOO_SOCKET_IFNAME", "eth"));
  CHECK(is_good("NCCL_IB_HCA", "mlx5"));
  CHECK(is_good("NCCL_IB_HCA", "=mlx5_0:1"));
  CHECK_FALSE(is_good("NCCL_IB_HCA", "mlx5_1"));
  CHECK(is_good("NCCL_IB_GID_INDEX", "0"));
  CHECK(is_good("NCCL_IB_GID_INDEX", "3"));
  CHECK_FALSE(is_good("NCCL_IB_GID_INDEX", "1"));
  MachineFacts facts = GoodMachine();
  facts.rdma_ports[0].is_ethernet = true;
  facts.environment = {{"NCCL_IB_GID_INDEX", "0"}};
  CHECK(WorstOf(DiagnoseEnvironment(facts)) == Severity::kError);
}

}  // namespace
}  // namespace convene::agent
