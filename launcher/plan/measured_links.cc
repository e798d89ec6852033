#include "launcher/plan/measured_links.h"

#include <algorithm>
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

}  // namespace

absl::StatusOr<worker::MeasuredLinks> LinksOf(const worker::BenchResult& result) {
  worker::MeasuredLinks links;
  const bool is_one_node =
      std::all_of(result.hosts.begin(), result.hosts.end(),
                  [&](const std::string& host) { return host == result.hosts.front(); });
  if (is_one_node) AddDomain(result, &links);
  if (!is_one_node && result.pairs.has_value()) AddNetwork(*result.pairs, &links);
  if (links.domain_bus > 0 || links.network_pair > 0) return links;
  return absl::InvalidArgumentError(
      "it says nothing of a link: on one node measure all_reduce from 1 MiB on (`convene bench "
      "--save FILE all_reduce`), between nodes their pairs (`convene bench --pairs --save FILE`)");
}

absl::StatusOr<worker::MeasuredLinks> ReadMeasuredLinks(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const auto result = worker::ParseBenchJson(text);
  if (!result.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--measure ", path,
        ": it is no result of `convene bench --save`: ", std::string(result.status().message())));
  }
  const auto links = LinksOf(*result);
  if (!links.ok()) return Annotate(links.status(), absl::StrCat("--measure ", path));
  return links;
}

}  // namespace convene::launcher
