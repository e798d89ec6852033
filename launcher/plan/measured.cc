#include "launcher/plan/measured.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/bench/report.h"

namespace convene::launcher {
namespace {

constexpr int64_t kLargeBytes = 1 << 20;
constexpr int64_t kSmallBytes = 64 << 10;

// Of the ranks of one node.
void AddDomain(const worker::BenchResult& result, worker::MeasuredLinks* links) {
  const double hops = 2.0 * (result.ranks - 1);
  for (const worker::BenchRow& row : result.rows) {
    if (row.operation != "all_reduce" || result.ranks < 2) continue;
    if (row.bytes >= kLargeBytes) {
      links->domain_bus =
          std::max(links->domain_bus,
                   row.algorithm_bandwidth() * worker::BusFactor("all_reduce", result.ranks));
    }
    if (row.bytes > kSmallBytes) continue;
    const double latency = row.seconds / hops;
    const bool is_least = links->domain_latency == 0 || latency < links->domain_latency;
    if (is_least) links->domain_latency = latency;
  }
}

void AddNetwork(const worker::PairTable& pairs, worker::MeasuredLinks* links) {
  links->network_pair = worker::FindSlowSpots(pairs).usual;
  std::vector<double> latencies;
  for (const double latency : pairs.latency_seconds) {
    if (latency > 0) latencies.push_back(latency);
  }
  if (latencies.empty()) return;
  std::nth_element(latencies.begin(),
                   latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() / 2),
                   latencies.end());
  links->network_latency = latencies[latencies.size() / 2];
}

std::vector<worker::MeasuredOps> OpsOf(const std::vector<worker::ComputeRow>& rows) {
  std::vector<worker::MeasuredOps> all;
  for (const worker::DType dtype : {worker::DType::kFloat32, worker::DType::kBFloat16}) {
    worker::MeasuredOps ops = {.dtype = dtype};
    for (const worker::ComputeRow& row : rows) {
      if (row.dtype != dtype) continue;
      const bool is_pass = row.operation == worker::kPass;
      std::vector<worker::OpSample>& kind = is_pass                             ? ops.passes
                                            : row.operation == worker::kProduct ? ops.products
                                                                                : ops.attention;
      kind.push_back({static_cast<double>(row.rows), static_cast<double>(row.width),
                      is_pass ? row.bytes : row.flops, row.seconds});
    }
    if (!ops.products.empty()) all.push_back(std::move(ops));
  }
  return all;
}

}  // namespace

absl::StatusOr<Measured> MeasuredOf(const worker::BenchResult& result) {
  Measured measured;
  const auto of_first = std::count(result.hosts.begin(), result.hosts.end(), result.hosts.front());
  const bool is_one_node = of_first == result.ranks;
  if (is_one_node) AddDomain(result, &measured.links);
  if (!is_one_node && result.pairs.has_value()) AddNetwork(*result.pairs, &measured.links);
  measured.ops = OpsOf(result.compute);
  const bool has_node = !measured.ops.empty() || measured.links.domain_bus > 0;
  measured.is_cpu = has_node && result.transport == "Gloo";
  if (!measured.ops.empty()) {
    measured.ranks_of_node = static_cast<int>(of_first);
    measured.rank_bytes = result.memory_bytes / (measured.is_cpu ? measured.ranks_of_node : 1);
    return measured;
  }
  if (measured.links.domain_bus > 0 || measured.links.network_pair > 0) return measured;
  return absl::InvalidArgumentError(
      "the file has no figure of a link or of arithmetic: on one node measure all_reduce from 1 "
      "MiB "
      "on and each rank's own arithmetic (`convene bench --save FILE all_reduce compute`), between "
      "nodes their pairs (`convene bench --pairs --save FILE`)");
}

absl::StatusOr<Measured> ReadMeasured(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  CONVENE_RETURN_IF_ERROR(Annotate(
      text.status(), "--measure: `convene bench --save FILE all_reduce compute` writes the file"));
  const auto result = worker::ParseBenchJson(*text);
  if (!result.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--measure ", path,
        ": it is no result of `convene bench --save`: ", std::string(result.status().message())));
  }
  auto measured = MeasuredOf(*result);
  if (!measured.ok()) return Annotate(measured.status(), absl::StrCat("--measure ", path));
  measured->path = path;
  return measured;
}

absl::Status UseMeasured(const std::vector<Measured>& files, const worker::PlanJob& job,
                         const GivenHardware& given, worker::Cluster* cluster,
                         worker::Efficiency* efficiency) {
  for (const Measured& measured : files) {
    if (measured.is_cpu && !cluster->gpu.is_cpu) {
      if (given.gpu) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--measure ", measured.path, ": ranks on CPUs measured it, and the plan is for ",
            cluster->gpu.name, "; leave out --gpu and --cluster, or measure on such GPUs"));
      }
      const worker::Cluster usual = worker::UsualCluster("cpu", cluster->gpu.node);
      cluster->gpu = usual.gpu;
      if (!given.network) cluster->network = usual.network;
      *efficiency = worker::EfficiencyOf(cluster->gpu);
    }
    if (measured.ops.empty()) continue;
    if (cluster->gpu.node != measured.ranks_of_node) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--measure ", measured.path, ": its arithmetic was timed by ", measured.ranks_of_node,
          " ranks of a machine at once, and the plan has ", cluster->gpu.node,
          " on each; give --nodes-of ", measured.ranks_of_node,
          ", or measure with `convene bench --nproc-per-node ", cluster->gpu.node, "`"));
    }
    if (measured.rank_bytes > 0) cluster->gpu.memory_bytes = measured.rank_bytes;
    worker::UseMeasured(measured.ops, job, &cluster->gpu, efficiency);
  }
  for (const Measured& measured : files) worker::UseMeasured(measured.links, cluster);
  return absl::OkStatus();
}

}  // namespace convene::launcher
