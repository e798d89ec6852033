#include "agent/workers/numa.h"

#include <sched.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

std::string Plan(NumaBinding binding, const std::string& synthetic,
                 const std::vector<int>& device_nodes, int workers) {
  const auto cpus = ReadNumaCpus(synthetic);
  REQUIRE_OK(cpus);
  const auto plan = PlanNuma(binding, *cpus, device_nodes, workers);
  REQUIRE_OK(plan);
  return absl::StrJoin(*plan, " ", [](std::string* out, const std::vector<int>& list) {
    out->append(absl::StrCat(list.front(), "-", list.back()));
  });
}

// Two sockets, each of two nodes, two caches a node, eight cores a cache, two threads a core, which
// hwloc counts side by side.
constexpr char kBigNode[] = "pack:2 numa:2 l3:2 core:8 pu:2";

TEST_CASE("a topology of hwloc's is understood in all its levels") {
  CHECK(Plan(NumaBinding::kNode, kBigNode, {0, 1, 3}, 3) == "0-31 32-63 96-127");
  CHECK(Plan(NumaBinding::kSocket, kBigNode, {0, 1, 3}, 3) == "0-63 0-63 64-127");
  CHECK(Plan(NumaBinding::kCoreComplex, kBigNode, {1, 1}, 2) == "32-47 48-63");
  CHECK(Plan(NumaBinding::kExclusive, kBigNode, {1, 1, 1, 1}, 4) == "32-39 40-47 48-55 56-63");
  CHECK(Plan(NumaBinding::kNode, kBigNode, {}, 8) ==
        "0-31 0-31 32-63 32-63 64-95 64-95 96-127 96-127");
}

TEST_CASE("a machine without caches or cores in its description is planned for as well") {
  CHECK(Plan(NumaBinding::kCoreComplex, "pu:4", {}, 2) == "0-3 0-3");
  CHECK(Plan(NumaBinding::kExclusive, "pu:4", {}, 2) == "0-1 2-3");
  CHECK_STATUS(ReadNumaCpus("cheese:2"), absl::StatusCode::kInvalidArgument, "cheese");
}

TEST_CASE("of this machine, only CPUs that this process may use are planned with") {
  cpu_set_t before;
  REQUIRE(sched_getaffinity(0, sizeof(before), &before) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
  const auto cpus = ReadNumaCpus("");
  const auto bound = BindWorkers(NumaBinding::kNode, {}, 1);
  REQUIRE(sched_setaffinity(0, sizeof(before), &before) == 0);
  REQUIRE_OK(cpus);
  REQUIRE(cpus->size() == 1);
  CHECK(cpus->front().cpu == first);
  REQUIRE_OK(bound);
  CHECK(bound->front() == std::vector<int>{first});
}

// A machine with four GPUs, two on each node, and one that the kernel knows no node of.
struct GpuMachine {
  GpuMachine() {
    Add("0000:1B:00.0", "0", "GPU-aaaa1111");
    Add("0000:43:00.0", "0", "GPU-bbbb2222");
    Add("0000:9D:00.0", "1", "GPU-cccc3333");
    Add("0001:00:00.0", "-1", "GPU-dddd4444");
  }
  void Add(const std::string& address, const std::string& node, const std::string& uuid) {
    const std::string gpu = absl::StrCat(root.path(), "/proc/driver/nvidia/gpus/", address);
    REQUIRE_OK(MakeDirectories(gpu));
    REQUIRE_OK(WriteFileAtomic(
        gpu + "/information", absl::StrCat("Model: \t\t NVIDIA H200\nIRQ:   \t\t 17\nGPU UUID: \t ",
                                           uuid, "\nVideo BIOS: \t ??\n")));
    const std::string device =
        absl::StrCat(root.path(), "/sys/bus/pci/devices/", absl::AsciiStrToLower(address));
    REQUIRE_OK(MakeDirectories(device));
    REQUIRE_OK(WriteFileAtomic(device + "/numa_node", node + "\n"));
  }
  std::vector<int> Nodes(const std::string& visible) {
    return DeviceNodes(root.path(), {{"CUDA_VISIBLE_DEVICES", visible}});
  }
  testing::TempDir root;
};

TEST_CASE_METHOD(GpuMachine, "devices are in the order of their addresses") {
  CHECK(DeviceNodes(root.path(), {}) == std::vector<int>{0, 0, 1, 0});
  CHECK(DeviceNodes(root.path() + "/nothing", {}).empty());
}

TEST_CASE_METHOD(GpuMachine, "CUDA_VISIBLE_DEVICES chooses and orders, by number or UUID") {
  CHECK(Nodes("2,0") == std::vector<int>{1, 0});
  CHECK(Nodes("GPU-cccc3333, GPU-aaaa") == std::vector<int>{1, 0});
  CHECK(Nodes("2,-1,0") == std::vector<int>{1});
  CHECK(Nodes("2,4,0") == std::vector<int>{1});
  CHECK(Nodes("").empty());
  CHECK(Nodes("MIG-1234").empty());
}

}  // namespace
}  // namespace convene::agent
