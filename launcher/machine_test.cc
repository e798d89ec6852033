#include "launcher/machine.h"

#include <catch2/catch.hpp>

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

TEST_CASE("hidden GPUs do not count, and none can be conjured up") {
  CHECK(InspectWith("").gpus == 0);
  CHECK(InspectWith("-1").gpus == 0);
  const bool has_gpus = InspectWith(std::nullopt).gpus > 0;
  CHECK(InspectWith("0,GPU-abc, -1,3").gpus == (has_gpus ? 2 : 0));
}

}  // namespace
}  // namespace convene::launcher
