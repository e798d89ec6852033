// The tables, and the time of collectives.
#include "worker_runtime/planner/hardware.h"

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/planner/collectives.h"

namespace convene::worker {
namespace {

Cluster H100(int gpus) {
  Cluster cluster = {.gpu = *FindGpu("h100"), .gpus = gpus};
  cluster.network = *FindNetwork("ndr400");
  return cluster;
}

TEST_CASE("every GPU has its figures, and a network of the table") {
  CHECK(GpuNames().size() == 8);
  for (const std::string& name : GpuNames()) {
    INFO(name);
    const Gpu gpu = *FindGpu(name);
    CHECK(gpu.is_cpu == (name == "cpu"));
    CHECK(gpu.memory_bytes > (gpu.is_cpu ? 1e9 : 20e9));
    CHECK(gpu.bf16 >= (gpu.is_cpu ? 1 : 1.5) * gpu.fp32);
    CHECK((gpu.fp8 == 0 || gpu.fp8 > 1.9 * gpu.bf16));
    CHECK(gpu.memory_bandwidth > gpu.link.bandwidth);
    CHECK(gpu.sustained > 0.5);
    CHECK(gpu.sustained <= 1);
    CHECK(gpu.domain >= gpu.node);
    CHECK_OK(FindNetwork(gpu.network));
  }
  CHECK(FindGpu("a100")->fp8 == 0);
}

TEST_CASE("machines have as many GPUs as are asked for, and a rack keeps its links") {
  const Cluster cluster = UsualCluster("h200", 4);
  CHECK(cluster.gpu.node == 4);
  CHECK(cluster.gpu.domain == 4);
  CHECK(cluster.network.name == "ndr400");
  CHECK(UsualCluster("gb200", 2).gpu.domain == 72);
}

TEST_CASE("an unknown name is told the nearest one") {
  const auto gpu = FindGpu("h10");
  CHECK(absl::IsNotFound(gpu.status()));
  CHECK_THAT(std::string(gpu.status().message()), Catch::Contains("did you mean h100?"));
  CHECK_THAT(std::string(FindNetwork("ndr").status().message()), Catch::Contains("roce-400"));
}

TEST_CASE("a group lies in as few domains as its stride allows") {
  const auto is = [](const RankGroup& group, int ranks, int in_domain) {
    return group.ranks == ranks && group.in_domain == in_domain;
  };
  CHECK(is(GroupIn(H100(256), 1, 8), 8, 8));
  CHECK(is(GroupIn(H100(256), 2, 16), 16, 4));
  CHECK(is(GroupIn(H100(256), 8, 16), 16, 1));
  CHECK(is(GroupIn(H100(256), 64, 4), 4, 1));
  // Three of the five places of a domain would not divide it.
  CHECK(is(GroupIn(H100(24), 1, 12), 12, 6));
}

TEST_CASE("a group that does not divide a domain crosses a border somewhere") {
  Cluster sevens = H100(56);
  SetNode(7, &sevens.gpu);
  CHECK(GroupIn(sevens, 1, 2).in_domain == 1);
  CHECK(GroupIn(sevens, 1, 7).in_domain == 7);
  Cluster sixes = H100(48);
  SetNode(6, &sixes.gpu);
  CHECK(GroupIn(sixes, 1, 2).in_domain == 2);
  CHECK(GroupIn(sixes, 1, 4).in_domain == 2);
  CHECK(GroupIn(sixes, 2, 2).in_domain == 1);
  Cluster rack = UsualCluster("gb200", 4);
  rack.gpus = 144;
  CHECK(GroupIn(rack, 1, 16).in_domain == 8);
  // One domain alone has no border, however many GPUs it could have.
  rack.gpus = 64;
  CHECK_FALSE(GroupIn(rack, 1, 64).crosses_domains());
  sevens.gpus = 6;
  CHECK_FALSE(GroupIn(sevens, 1, 2).crosses_domains());
}

TEST_CASE("a ring is faster in a domain, and slower with every rank between domains") {
  const Cluster cluster = H100(1024);
  const double inside = BusBandwidth(cluster, {8, 8});
  CHECK(inside == Approx(0.75 * 450e9));
  double last = inside;
  for (const int nodes : {2, 8, 32, 128}) {
    const double rate = BusBandwidth(cluster, {8 * nodes, 8});
    INFO(nodes << " nodes");
    CHECK(rate < last);
    last = rate;
  }
  // One card of 50 GB/s, of which protocols leave 80 %.
  CHECK(BusBandwidth(cluster, {16, 1}) < 40e9);
  CHECK(BusBandwidth(cluster, {16, 1}) > 35e9);
}

TEST_CASE("the time of a gather is that of its bytes and of its hops") {
  const Cluster cluster = H100(64);
  CHECK(GatherSeconds(cluster, {1, 1}, 1e9) == 0);
  const RankGroup group = {64, 8};
  const double none = GatherSeconds(cluster, group, 0);
  CHECK(none == Approx(63 * 5e-6));
  CHECK(GatherSeconds(cluster, group, 1e9) - none ==
        Approx(1e9 * 63 / 64 / BusBandwidth(cluster, group)));
}

TEST_CASE("tokens that cross the network once are faster there, and not inside") {
  const Cluster cluster = H100(64);
  CHECK(AllToAllSeconds(cluster, {64, 8}, 1e9, 0.5) < AllToAllSeconds(cluster, {64, 8}, 1e9));
  CHECK(AllToAllSeconds(cluster, {8, 8}, 1e9, 0.5) == AllToAllSeconds(cluster, {8, 8}, 1e9));
}

}  // namespace
}  // namespace convene::worker
