#include "agent/core/numa_plan.h"

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"

namespace convene::agent {
namespace {

// Two sockets of two NUMA nodes of two caches of two cores of two threads: 32 CPUs, the second
// threads' numbers after all the first ones', as Linux counts.
std::vector<NumaCpu> Machine() {
  std::vector<NumaCpu> cpus;
  for (int cpu = 0; cpu < 32; ++cpu) {
    const int core = cpu % 16;
    cpus.push_back(
        {.cpu = cpu, .node = core / 4, .socket = core / 8, .core = core, .cache = core / 2});
  }
  return cpus;
}

std::string Plan(NumaBinding binding, const std::vector<NumaCpu>& cpus,
                 const std::vector<int>& device_nodes, int workers) {
  const auto plan = PlanNuma(binding, cpus, device_nodes, workers);
  if (!plan.ok()) return std::string(plan.status().message());
  return absl::StrJoin(*plan, " ", [](std::string* out, const std::vector<int>& list) {
    out->append(absl::StrJoin(list, ","));
  });
}

TEST_CASE("node: all CPUs of the device's node") {
  CHECK(Plan(NumaBinding::kNode, Machine(), {3, 0}, 2) ==
        "12,13,14,15,28,29,30,31 0,1,2,3,16,17,18,19");
}

TEST_CASE("socket: all CPUs of all nodes of the socket") {
  CHECK(Plan(NumaBinding::kSocket, Machine(), {1, 2}, 2) ==
        "0,1,2,3,4,5,6,7,16,17,18,19,20,21,22,23 "
        "8,9,10,11,12,13,14,15,24,25,26,27,28,29,30,31");
}

TEST_CASE("exclusive: whole cores, one more for the first where they do not come out even") {
  CHECK(Plan(NumaBinding::kExclusive, Machine(), {0, 0, 0}, 3) == "0,1,16,17 2,18 3,19");
}

TEST_CASE("exclusive shares are counted over all devices, also those without a worker") {
  CHECK(Plan(NumaBinding::kExclusive, Machine(), {0, 0, 0, 0}, 2) == "0,16 1,17");
}

TEST_CASE("exclusive: more workers than cores is an error that says what else to ask for") {
  CHECK(Plan(NumaBinding::kExclusive, Machine(), {1, 1, 1, 1, 1}, 5) ==
        "--numa-binding exclusive: NUMA node 1 has 4 usable cores for 5 workers or devices; use "
        "core-complex or node");
}

TEST_CASE("core-complex: the node's caches in turn") {
  CHECK(Plan(NumaBinding::kCoreComplex, Machine(), {1, 1, 1}, 3) ==
        "4,5,20,21 6,7,22,23 4,5,20,21");
}

TEST_CASE("core-complex: a cache with more usable CPUs comes first") {
  std::vector<NumaCpu> cpus = Machine();
  cpus.erase(cpus.begin());  // CPU 0 may not be used.
  CHECK(Plan(NumaBinding::kCoreComplex, cpus, {0, 0}, 2) == "2,3,18,19 1,16,17");
}

TEST_CASE("CPUs that may not be used are in no plan, and a node without any is an error") {
  std::vector<NumaCpu> cpus = Machine();
  cpus.resize(4);
  CHECK(Plan(NumaBinding::kNode, cpus, {0}, 1) == "0,1,2,3");
  CHECK_THAT(
      Plan(NumaBinding::kNode, cpus, {0, 2}, 2),
      Catch::Contains("local rank 1 stands on NUMA node 2, of which this process may use no CPU"));
}

TEST_CASE("without devices the workers are spread over the nodes, neighbours together") {
  CHECK(Plan(NumaBinding::kExclusive, Machine(), {}, 8) ==
        "0,1,16,17 2,3,18,19 4,5,20,21 6,7,22,23 8,9,24,25 10,11,26,27 12,13,28,29 14,15,30,31");
  CHECK(Plan(NumaBinding::kExclusive, Machine(), {0}, 2) ==
        "0,1,2,3,16,17,18,19 8,9,10,11,24,25,26,27");
  CHECK(Plan(NumaBinding::kCoreComplex, Machine(), {}, 4) ==
        "0,1,16,17 4,5,20,21 8,9,24,25 12,13,28,29");
}

TEST_CASE("no binding, no lists") { CHECK(Plan(NumaBinding::kNone, {}, {}, 2) == " "); }

}  // namespace
}  // namespace convene::agent
