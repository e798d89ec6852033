#include "agent/machine/read_facts.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "agent/machine/ask_child.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

using ::convene::testing::TempDir;

constexpr char kFakeNvml[] = "agent/machine/libfake_nvml.so";

class FakeRoot {
 public:
  void Write(const std::string& path, const std::string& content) {
    const std::string full = root() + path;
    REQUIRE_OK(MakeDirectories(ParentDirectory(full)));
    REQUIRE_OK(WriteFileAtomic(full, content));
  }
  std::string root() const { return dir_.path(); }

 private:
  const TempDir dir_;
};

TEST_CASE("the version of NCCL is the library's own word") {
  CHECK(ReadNcclVersion(kFakeNvml) == "2.28.9");
  CHECK(ReadNcclVersion("libno-such-library.so").empty());
}

TEST_CASE("interfaces: what /sys/class/net says, and no file beside them") {
  FakeRoot machine;
  for (const std::string file :
       {"operstate up", "mtu 9000", "speed 100000", "device/numa_node 1"}) {
    const size_t space = file.find(' ');
    machine.Write("/sys/class/net/eth7/" + file.substr(0, space), file.substr(space + 1) + "\n");
  }
  machine.Write("/sys/class/net/veth1/operstate", "down\n");
  machine.Write("/sys/class/net/veth1/speed", "-1\n");
  machine.Write("/sys/class/net/lo/operstate", "unknown\n");
  machine.Write("/sys/class/net/bonding_masters", "\n");
  const std::vector<Interface> interfaces = ReadInterfaces(machine.root());
  REQUIRE(interfaces.size() == 3);
  CHECK(interfaces[0].name == "eth7");
  CHECK(interfaces[0].is_up);
  CHECK_FALSE(interfaces[0].is_virtual);
  CHECK(interfaces[0].mtu == 9000);
  CHECK(interfaces[0].megabits == 100000);
  CHECK(interfaces[0].numa_node == 1);
  CHECK(interfaces[1].name == "lo");
  CHECK(interfaces[1].is_up);
  CHECK_FALSE(interfaces[2].is_up);
  CHECK(interfaces[2].is_virtual);
  CHECK(interfaces[2].megabits == 0);
}

TEST_CASE("RDMA ports, and those of their addresses that are set") {
  FakeRoot machine;
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1";
  machine.Write(port + "/state", "4: ACTIVE\n");
  machine.Write(port + "/rate", "400 Gb/sec (4X NDR)\n");
  machine.Write(port + "/link_layer", "Ethernet\n");
  machine.Write("/sys/class/infiniband/mlx5_0/device/numa_node", "0\n");
  machine.Write(port + "/gids/0", "fe80:0000:0000:0000:0a00:27ff:fe00:0001\n");
  machine.Write(port + "/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
  machine.Write(port + "/gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0007\n");
  machine.Write(port + "/gid_attrs/types/0", "IB/RoCE v1\n");
  machine.Write(port + "/gid_attrs/types/2", "RoCE v2\n");
  machine.Write(port + "/gid_attrs/ndevs/2", "eth7\n");
  const std::vector<RdmaPort> ports = ReadRdmaPorts(machine.root());
  REQUIRE(ports.size() == 1);
  CHECK(ports[0].device == "mlx5_0");
  CHECK(ports[0].state == "ACTIVE");
  CHECK(ports[0].rate == "400 Gb/sec (4X NDR)");
  CHECK(ports[0].is_ethernet);
  CHECK(ports[0].numa_node == 0);
  REQUIRE(ports[0].gids.size() == 2);
  CHECK_FALSE(ports[0].gids[0].is_ipv4);
  CHECK(ports[0].gids[1].index == 2);
  CHECK(ports[0].gids[1].type == "RoCE v2");
  CHECK(ports[0].gids[1].is_ipv4);
  CHECK(ports[0].gids[1].interface == "eth7");
}

TEST_CASE("GPUs as NVML has them") {
  FakeRoot machine;
  CHECK(ReadGpuDriver(machine.root(), kFakeNvml).gpus.empty());
  CHECK(ReadGpuDriver(machine.root(), kFakeNvml).error.empty());
  for (const std::string name : {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"}) {
    machine.Write("/dev/" + name, "");
  }
  machine.Write("/sys/bus/pci/devices/0000:d8:00.0/numa_node", "1\n");
  const GpuDriver driver = ReadGpuDriver(machine.root(), kFakeNvml);
  CHECK(driver.device_files == 2);
  CHECK(driver.error.empty());
  CHECK(driver.version == "580.65.06");
  CHECK(driver.cuda == "13.0");
  REQUIRE(driver.gpus.size() == 2);
  const Gpu& good = driver.gpus[0];
  CHECK(good.name == "NVIDIA H100 80GB HBM3");
  CHECK(good.uuid == "GPU-a");
  CHECK(good.pci_address == "0000:3b:00.0");
  CHECK(good.memory_bytes == int64_t{80} << 30);
  CHECK(good.used_bytes == 0);
  CHECK(good.uncorrected_errors == 0);
  CHECK_FALSE(good.slowdown.by_heat);
  CHECK_FALSE(good.needs_reset);
  CHECK(good.links_up == 18);
  CHECK(good.links_down == 0);
  CHECK(good.numa_node == -1);
  CHECK(good.cluster_uuid == "abababababababababababababababab");
  CHECK(good.fabric == FabricState::kCompleted);
  CHECK(good.fabric_error == 0);
  CHECK(good.clique == 7);
  const Gpu& bad = driver.gpus[1];
  CHECK(bad.used_bytes == int64_t{60} << 30);
  CHECK(bad.uncorrected_errors == 4);
  CHECK(bad.slowdown.by_heat);
  CHECK_FALSE(bad.slowdown.by_hardware);
  CHECK_FALSE(bad.slowdown.by_power_brake);
  CHECK(bad.needs_reset);
  CHECK_FALSE(bad.remapping_failed);
  CHECK(bad.is_persistent);
  CHECK(bad.links_up == 17);
  CHECK(bad.links_down == 1);
  CHECK(bad.numa_node == 1);
}

TEST_CASE("a fabric that is not there yet, that is split, or of no use, and clocks that are set") {
  FakeRoot machine;
  machine.Write("/dev/nvidia0", "");
  setenv("FAKE_NVML", "unstarted", 1);
  GpuDriver driver = ReadGpuDriver(machine.root(), kFakeNvml);
  REQUIRE(driver.gpus.size() == 2);
  CHECK(driver.gpus[0].fabric == FabricState::kNotStarted);
  CHECK(driver.gpus[0].cluster_uuid.empty());
  setenv("FAKE_NVML", "split", 1);
  driver = ReadGpuDriver(machine.root(), kFakeNvml);
  REQUIRE(driver.gpus.size() == 2);
  CHECK(driver.gpus[0].clique == 1);
  CHECK(driver.gpus[1].clique == 2);
  setenv("FAKE_NVML", "capped", 1);
  driver = ReadGpuDriver(machine.root(), kFakeNvml);
  unsetenv("FAKE_NVML");
  REQUIRE(driver.gpus.size() == 2);
  CHECK(driver.gpus[1].fabric_error == 999);
  CHECK(driver.gpus[1].cluster_uuid.empty());
  CHECK(driver.gpus[1].slowdown.by_power_brake);
  CHECK(driver.gpus[1].slowdown.by_power_limit);
  CHECK(driver.gpus[1].slowdown.by_clock_setting);
  CHECK_FALSE(driver.gpus[1].slowdown.by_heat);
  CHECK_FALSE(driver.gpus[1].slowdown.by_hardware);
}

TEST_CASE("a driver that does not answer is told, with its words") {
  FakeRoot machine;
  machine.Write("/dev/nvidia0", "");
  CHECK(ReadGpuDriver(machine.root(), "libnone.so").error ==
        "the driver's library libnone.so cannot be loaded");
  setenv("FAKE_NVML", "broken", 1);
  CHECK(ReadGpuDriver(machine.root(), kFakeNvml).error ==
        "the driver does not answer: Driver/library version mismatch");
  setenv("FAKE_NVML", "dies", 1);
  CHECK(ReadGpuDriver(machine.root(), kFakeNvml).error ==
        "the driver's library ended the program that asked it");
  unsetenv("FAKE_NVML");
}

TEST_CASE("a folder is tried by a file, which does not stay") {
  const TempDir dir;
  const Folder folder = TryFolder(dir.path());
  CHECK(folder.error.empty());
  CHECK(folder.total_bytes > 0);
  CHECK(ListDirectory(dir.path()).value().empty());
  CHECK(TryFolder(dir.File("none")).error.find("none") != std::string::npos);
  const ScopedFileFault fault([](FileOp op, const std::string& path) {
    return op == FileOp::kWrite && path != "pipe" ? ENOSPC : 0;
  });
  CHECK(TryFolder(dir.path()).error.find("No space left") != std::string::npos);
}

TEST_CASE("a question that nobody answers ends with its deadline") {
  const auto hangs = []() -> std::string {
    for (;;) pause();
  };
  CHECK_FALSE(AskInChild(hangs, absl::Milliseconds(1)).has_value());
  CHECK(AskInChild([]() -> std::string { _exit(1); }, absl::Seconds(60)) == "");
  const TempDir dir;
  const UniqueFd ours(open(dir.path().c_str(), O_RDONLY | O_DIRECTORY));
  const auto holds_ours = [&] {
    return std::string(fcntl(ours.get(), F_GETFD) < 0 ? "no" : "yes");
  };
  CHECK(AskInChild(holds_ours, absl::Seconds(60)) == "no");
  CHECK(AskInChild([] { return std::string(100000, 'x'); }, absl::Seconds(60))->size() == 100000);
}

TEST_CASE("this machine's own facts") {
  const MachineFacts facts = ReadFacts({.environment = {{"NCCL_DEBUG", "INFO"}}});
  CHECK_FALSE(facts.host.empty());
  CHECK(facts.cpus >= 1);
  CHECK(facts.memory_bytes > facts.available_bytes);
  CHECK(facts.available_bytes > 0);
  CHECK(facts.folders.size() == 1);
  CHECK_FALSE(facts.interfaces.empty());
  CHECK(facts.environment.at("NCCL_DEBUG") == "INFO");
}

TEST_CASE("the limit of locked memory binds no process with CAP_IPC_LOCK of the whole machine") {
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
  const rlimit small = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &small) == 0);
  const auto locked_bytes = [](const std::string& capabilities, const std::string& ids) {
    FakeRoot machine;
    machine.Write("/proc/self/status", "Name:\tx\nCapEff:\t" + capabilities + "\nCapBnd:\t0\n");
    machine.Write("/proc/self/uid_map", ids);
    return ReadFacts({.root = machine.root()}).limits.locked_bytes;
  };
  const std::string all_ids = "         0          0 4294967295\n";
  CHECK(locked_bytes("0000000000004000", all_ids) == kUnlimited);
  CHECK(locked_bytes("000001ffffffbfff", all_ids) == 4096);
  // Root of a user namespace alone, as in a container without root.
  CHECK(locked_bytes("000001ffffffffff", "         0       1000          1\n") == 4096);
  REQUIRE(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
}

TEST_CASE("memory that a container has left, not its limit, is what is free") {
  FakeRoot machine;
  machine.Write("/proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n");
  machine.Write("/proc/self/cgroup", "0::/\n");
  machine.Write("/sys/fs/cgroup/memory.max", "1048576\n");
  machine.Write("/sys/fs/cgroup/memory.current", "1000000\n");
  const MachineFacts facts = ReadFacts({.root = machine.root()});
  CHECK(facts.memory_bytes == 1 << 20);
  CHECK(facts.available_bytes == (1 << 20) - 1000000);
}

TEST_CASE("huge pages that no program holds, in bytes") {
  FakeRoot machine;
  machine.Write("/proc/meminfo",
                "MemTotal: 4096 kB\nMemAvailable: 2048 kB\nHugePages_Total:  9\n"
                "HugePages_Free:    7\nHugepagesize:    2048 kB\n");
  const MachineFacts facts = ReadFacts({.root = machine.root()});
  CHECK(facts.memory_bytes == 4096 << 10);
  CHECK(facts.free_huge_bytes == int64_t{7} * (2048 << 10));
}

}  // namespace
}  // namespace convene::agent
