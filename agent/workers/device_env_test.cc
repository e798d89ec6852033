#include "agent/workers/device_env.h"

#include "tools/base/testing/status_testing.h"

namespace convene::agent {
namespace {

using Table = std::map<std::string, std::string>;

Table Narrowed(const Table& environment, int local_rank) {
  const auto devices = OneVisibleDevice(environment, local_rank);
  REQUIRE_OK(devices);
  return *devices;
}

TEST_CASE("without a list of devices a worker sees the one of its local rank") {
  CHECK(Narrowed({}, 3) == Table{{"CUDA_VISIBLE_DEVICES", "3"}});
}

TEST_CASE("with a list a worker sees the entry of its local rank, be it a number or a UUID") {
  CHECK(Narrowed({{"CUDA_VISIBLE_DEVICES", "4,5, 7"}}, 2) == Table{{"CUDA_VISIBLE_DEVICES", "7"}});
  CHECK(Narrowed({{"CUDA_VISIBLE_DEVICES", "GPU-8f,MIG-77"}}, 1) ==
        Table{{"CUDA_VISIBLE_DEVICES", "MIG-77"}});
}

TEST_CASE("a list that is too short is an error that names it") {
  CHECK_STATUS(OneVisibleDevice({{"CUDA_VISIBLE_DEVICES", "4,5"}}, 2),
               absl::StatusCode::kInvalidArgument,
               "CUDA_VISIBLE_DEVICES=4,5 has no device for local rank 2");
}

TEST_CASE("on ROCm its own list counts, and both are set") {
  CHECK(Narrowed({{"HIP_VISIBLE_DEVICES", "6,7"}, {"CUDA_VISIBLE_DEVICES", "0"}}, 1) ==
        Table{{"CUDA_VISIBLE_DEVICES", "7"}, {"HIP_VISIBLE_DEVICES", "7"}});
  CHECK(Narrowed({{"HIP_VISIBLE_DEVICES", ""}}, 1) == Table{{"CUDA_VISIBLE_DEVICES", "1"}});
}

}  // namespace
}  // namespace convene::agent
