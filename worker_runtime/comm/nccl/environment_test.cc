#include "worker_runtime/comm/nccl/environment.h"

#include <catch2/catch.hpp>
#include <map>

namespace convene::worker {
namespace {

std::map<std::string, std::string> MapOf(const NcclPlace& place) {
  const auto variables = NcclEnvironment(place);
  return {variables.begin(), variables.end()};
}

TEST_CASE("ranks with a GPU each need nothing") {
  CHECK(MapOf({.host_name = "node", .local_world_size = 8, .world_size = 16, .gpus = 8}).empty());
}

TEST_CASE("ranks that share a GPU are hosts of their own, over the loopback interface") {
  const auto first =
      MapOf({.host_name = "node", .local_world_size = 2, .world_size = 2, .gpus = 1});
  const auto second = MapOf(
      {.host_name = "node", .local_rank = 1, .local_world_size = 2, .world_size = 2, .gpus = 1});
  CHECK(first.at("NCCL_HOSTID") == "node-rank-0");
  CHECK(second.at("NCCL_HOSTID") == "node-rank-1");
  CHECK(first.at("NCCL_SOCKET_IFNAME") == "lo");
}

TEST_CASE("ranks that share a GPU are told of it, the others are not") {
  CHECK(SharingWarning({.host_name = "node", .local_world_size = 8, .gpus = 8}).empty());
  CHECK_THAT(SharingWarning({.host_name = "node", .local_world_size = 8, .gpus = 7}),
             Catch::StartsWith("8 ranks share 7 GPUs of node: ") &&
                 Catch::Contains("--nproc-per-node") && Catch::Contains("CUDA_VISIBLE_DEVICES"));
  CHECK_THAT(SharingWarning({.host_name = "node", .local_world_size = 2, .gpus = 1}),
             Catch::StartsWith("2 ranks share 1 GPU of node: "));
}

TEST_CASE("ranks of two machines do not meet on the loopback interface") {
  const auto variables =
      MapOf({.host_name = "node", .local_world_size = 2, .world_size = 4, .gpus = 1});
  CHECK(variables.count("NCCL_HOSTID") == 1);
  CHECK(variables.count("NCCL_SOCKET_IFNAME") == 0);
}

}  // namespace
}  // namespace convene::worker
