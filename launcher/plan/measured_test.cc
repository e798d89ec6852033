#include "launcher/plan/measured.h"

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using worker::BenchResult;
using worker::MeasuredLinks;
using worker::PairTable;

TEST_CASE("the ranks of one node measure the links of its GPUs") {
  BenchResult result;
  result.ranks = 8;
  result.hosts.assign(8, "a");
  result.rows = {{"all_reduce", 8, 2, 14e-6, 0},
                 {"all_reduce", 1 << 20, 1 << 18, 1e-4, 0},
                 {"all_reduce", 128 << 20, 1 << 25, 0.5e-3, 0},
                 {"all_gather", 128 << 20, 1 << 25, 1e-9, 0}};
  const auto measured = MeasuredOf(result);
  REQUIRE_OK(measured);
  const MeasuredLinks* const links = &measured->links;
  CHECK(links->domain_bus == Approx((128 << 20) / 0.5e-3 * 1.75));
  // Fourteen hops.
  CHECK(links->domain_latency == Approx(1e-6));
  CHECK(links->network_pair == 0);
  // A plan of that collective is then as fast as the collective was.
  worker::Cluster cluster = {.gpu = *worker::FindGpu("h100"), .network = {}, .gpus = 8};
  worker::UseMeasured(*links, &cluster);
  const double seconds = 2 * worker::GatherSeconds(cluster, {8, 8}, 128 << 20);
  CHECK(seconds == Approx(0.5e-3 + 14e-6).epsilon(0.01));
}

TEST_CASE("pairs of nodes measure the network, whatever one slow link has") {
  BenchResult result;
  result.ranks = 3;
  result.hosts = {"a", "b", "c"};
  result.pairs = PairTable{.members = result.hosts,
                           .bytes = 64 << 20,
                           .bytes_per_second = {0, 40e9, 10e9, 40e9, 0, 40e9, 10e9, 40e9, 0},
                           .latency_seconds = {0, 5e-6, 5e-6, 5e-6, 0, 5e-6, 5e-6, 5e-6, 0}};
  const auto measured = MeasuredOf(result);
  REQUIRE_OK(measured);
  const MeasuredLinks* const links = &measured->links;
  CHECK(links->network_pair == 40e9);
  CHECK(links->network_latency == 5e-6);
  CHECK(links->domain_bus == 0);
  worker::Cluster cluster = {.gpu = *worker::FindGpu("h100"), .network = {}, .gpus = 16};
  const double link_before = cluster.gpu.link.bandwidth;
  worker::UseMeasured(*links, &cluster);
  CHECK(cluster.gpu.link.bandwidth == link_before);
  CHECK(cluster.network.name == "measured");
  CHECK(worker::MessageSeconds(cluster.network, 40e9) == Approx(1).epsilon(0.001));
}

TEST_CASE("a result without links is told what to measure") {
  BenchResult result;
  result.ranks = 2;
  result.hosts = {"a", "b"};
  result.rows = {{"all_reduce", 1 << 20, 1 << 18, 1e-4, 0}};
  CHECK_STATUS(MeasuredOf(result), absl::StatusCode::kInvalidArgument, "convene bench --pairs");
  result.hosts = {"a", "a"};
  result.rows[0].bytes = 8;
  CHECK_STATUS(MeasuredOf(result), absl::StatusCode::kInvalidArgument, "from 1 MiB on");
  CHECK_STATUS(ReadMeasured("/proc/self/status"), absl::StatusCode::kInvalidArgument,
               "no result of `convene bench --save`");
}

// Two ranks of one machine, that timed products in fp32.
BenchResult WithCompute() {
  BenchResult result;
  result.ranks = 2;
  result.hosts = {"a", "a"};
  result.transport = "Gloo";
  result.memory_bytes = 8e9;
  for (const int64_t rows : {64, 512}) {
    for (const int64_t width : {64, 512}) {
      const double flops = 6.0 * static_cast<double>(rows * width * width);
      result.compute.push_back({.operation = worker::kProduct,
                                .rows = rows,
                                .width = width,
                                .flops = flops,
                                .bytes = 1,
                                .seconds = flops / 20e9});
    }
  }
  return result;
}

// Plans by these files, in this order.
absl::Status Use(const std::vector<BenchResult>& results, worker::Cluster* cluster,
                 worker::Efficiency* efficiency, const GivenHardware& given = {}) {
  std::vector<Measured> files;
  for (const BenchResult& result : results) {
    const auto measured = MeasuredOf(result);
    REQUIRE_OK(measured);
    files.push_back(*measured);
  }
  return UseMeasured(files, {.dtype = worker::DType::kFloat32}, given, cluster, efficiency);
}

TEST_CASE("arithmetic that ranks of a CPU timed makes the cluster one of such ranks") {
  worker::Cluster cluster = worker::UsualCluster("h100", 2);
  cluster.gpus = 4;
  worker::Efficiency efficiency;
  CHECK_OK(Use({WithCompute()}, &cluster, &efficiency));
  CHECK(cluster.gpu.is_cpu);
  CHECK(cluster.gpus == 4);
  CHECK(cluster.gpu.domain == 2);
  CHECK(cluster.gpu.memory_bytes == 4e9);
  CHECK(cluster.gpu.fp32 == Approx(20e9).epsilon(0.01));
  CHECK(cluster.network.name == "eth-10");
  CHECK(efficiency.tp_overlap == 0);
  // Ranks share a machine: of another number the times say nothing.
  worker::Cluster larger = worker::UsualCluster("h100", 4);
  CHECK_STATUS(Use({WithCompute()}, &larger, &efficiency), absl::StatusCode::kInvalidArgument,
               "give --nodes-of 2");
}

TEST_CASE("a network that was given or measured stays, and files come in any order") {
  worker::Efficiency efficiency;
  worker::Cluster given = worker::UsualCluster("h100", 2);
  CHECK_OK(Use({WithCompute()}, &given, &efficiency, {.network = true}));
  CHECK(given.gpu.is_cpu);
  CHECK(given.network.name == "ndr400");
  BenchResult pairs;
  pairs.ranks = 2;
  pairs.hosts = {"a", "b"};
  pairs.pairs = PairTable{.members = pairs.hosts,
                          .bytes = 64 << 20,
                          .bytes_per_second = {0, 2e9, 2e9, 0},
                          .latency_seconds = {0, 5e-6, 5e-6, 0}};
  BenchResult links;
  links.ranks = 2;
  links.hosts = {"a", "a"};
  links.rows = {{"all_reduce", 128 << 20, 1 << 25, 0.5, 0}};
  for (const auto& files : {std::vector<BenchResult>{pairs, links, WithCompute()},
                            std::vector<BenchResult>{WithCompute(), links, pairs}}) {
    worker::Cluster cluster = worker::UsualCluster("h100", 2);
    CHECK_OK(Use(files, &cluster, &efficiency));
    CHECK(cluster.gpu.is_cpu);
    CHECK(cluster.network.name == "measured");
    CHECK(cluster.gpu.link.name == "measured");
  }
}

TEST_CASE(
    "links that ranks on CPUs measured are of such ranks, and no GPU that was given has them") {
  BenchResult links;
  links.ranks = 2;
  links.hosts = {"a", "a"};
  links.transport = "Gloo";
  links.rows = {{"all_reduce", 128 << 20, 1 << 25, 0.5, 0}};
  worker::Efficiency efficiency;
  worker::Cluster unnamed = worker::UsualCluster("h100", 2);
  CHECK_OK(Use({links}, &unnamed, &efficiency));
  CHECK(unnamed.gpu.is_cpu);
  CHECK(unnamed.gpu.link.name == "measured");
  for (const BenchResult& file : {links, WithCompute()}) {
    worker::Cluster named = worker::UsualCluster("h100", 2);
    CHECK_STATUS(Use({file}, &named, &efficiency, {.gpu = true}),
                 absl::StatusCode::kInvalidArgument,
                 "ranks on CPUs measured it, and the plan is for h100; leave out --gpu");
    worker::Cluster cpus = worker::UsualCluster("cpu", 2);
    CHECK_OK(Use({file}, &cpus, &efficiency, {.gpu = true}));
  }
}

TEST_CASE("a GPU's own arithmetic leaves its peak, links and memory as they are") {
  BenchResult result = WithCompute();
  result.transport = "NCCL";
  worker::Cluster cluster = worker::UsualCluster("h100", 2);
  worker::Efficiency efficiency;
  CHECK_OK(Use({result}, &cluster, &efficiency));
  CHECK(cluster.gpu.name == "h100");
  CHECK(cluster.gpu.link.name == "NVLink 4");
  CHECK(cluster.network.name == "ndr400");
  CHECK(cluster.gpu.memory_bytes == 8e9);
  CHECK(cluster.gpu.fp32 == 67e12);
  CHECK(efficiency.product_share * 0.82 * 67e12 == Approx(20e9).epsilon(0.01));
}

}  // namespace
}  // namespace convene::launcher
