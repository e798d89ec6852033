#include "launcher/machine.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <string>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::launcher {
namespace {

Machine InspectWith(std::optional<std::string> visible) {
  return InspectMachine([&](const std::string& name) {
    return name == "CUDA_VISIBLE_DEVICES" ? visible : std::nullopt;
  });
}

TEST_CASE("a machine has a name and at least one CPU") {
  const Machine machine = InspectWith(std::nullopt);
  CHECK_FALSE(machine.host_name.empty());
  CHECK(machine.cpus >= 1);
  CHECK_FALSE(machine.parent.empty());
}

// Runs `is_right` in a grandchild of this process; the program between them has another name.
template <typename IsRight>
bool HoldsInGrandchild(const IsRight& is_right) {
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_NAME, "between");
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(is_right() ? 0 : 1);
    int status = 1;
    waitpid(grandchild, &status, 0);
    _exit(status == 0 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
}

TEST_CASE("an ancestor is found by its program's name, however far up it is") {
  CHECK(AncestorNamed(ParentName()) == getppid());
  CHECK(AncestorNamed("no such program") == 0);
  const pid_t own = getpid();
  char name[16] = {};
  prctl(PR_GET_NAME, name);
  CHECK(HoldsInGrandchild([&] { return AncestorNamed(name) == own; }));
}

TEST_CASE("nodes of one NVLink domain have one label") {
  agent::GpuDriver driver;
  CHECK(NvlinkTopology(driver).empty());
  driver.gpus = {{.cluster_uuid = "ab01"}, {.cluster_uuid = "ab01"}};
  CHECK(NvlinkTopology(driver) == "nvlink-ab01");
  driver.gpus[1].cluster_uuid = "ab02";
  CHECK(NvlinkTopology(driver).empty());
  driver.gpus = {{.cluster_uuid = ""}};
  CHECK(NvlinkTopology(driver).empty());
  driver.gpus = {{.cluster_uuid = "0000"}};
  CHECK(NvlinkTopology(driver).empty());
}

TEST_CASE("AMD's GPUs count where there are none of NVIDIA's, by ROCm's variables") {
  const testing::TempDir root;
  const auto write = [&](const std::string& path, const std::string& text) {
    REQUIRE_OK(MakeDirectories(ParentDirectory(root.File(path))));
    REQUIRE_OK(WriteFileAtomic(root.File(path), text));
  };
  const auto count = [&](const std::map<std::string, std::string>& variables) {
    const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    };
    return InspectMachine(lookup, root.path()).gpus;
  };
  const std::string nodes = "sys/class/kfd/kfd/topology/nodes/";
  write(nodes + "0/gpu_id", "0\n");  // the CPUs
  for (const std::string node : {"1", "2", "3"}) write(nodes + node + "/gpu_id", "51234\n");
  CHECK(count({}) == 0);  // a container without the device
  write("dev/kfd", "");
  CHECK(count({}) == 3);
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "2"}}) == 1);
  CHECK(count({{"CUDA_VISIBLE_DEVICES", "2"}, {"ROCR_VISIBLE_DEVICES", "0,1"}}) == 2);
  CHECK(count({{"HIP_VISIBLE_DEVICES", "0"}, {"ROCR_VISIBLE_DEVICES", "0,1"}}) == 1);
  write("dev/nvidia0", "");
  CHECK(count({{"HIP_VISIBLE_DEVICES", "0,1"}}) == 1);
}

TEST_CASE("hidden GPUs do not count, and none can be conjured up") {
  CHECK(InspectWith("").gpus == 0);
  CHECK(InspectWith("-1").gpus == 0);
  const bool has_gpus = InspectWith(std::nullopt).gpus > 0;
  CHECK(InspectWith("0,GPU-abc, -1,3").gpus == (has_gpus ? 2 : 0));
}

}  // namespace
}  // namespace convene::launcher
