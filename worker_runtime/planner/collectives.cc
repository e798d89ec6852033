#include "worker_runtime/planner/collectives.h"

#include <algorithm>
#include <cmath>

namespace convene::worker {
namespace {

// Protocols and headers leave so much of a link.
constexpr double kDomainShare = 0.75;
constexpr double kNetworkShare = 0.8;
constexpr double kRanksOfHalfRate = 200;
// A tree's inner ranks receive from two.
constexpr double kTreeShare = 0.9;
// An all-to-all has no ring whose hops wait for each other, but many small messages.
constexpr double kAllToAllShare = 0.6;

}  // namespace

RankGroup GroupIn(const Cluster& cluster, int stride, int ranks) {
  const int domain = std::min(cluster.gpu.domain, cluster.gpus);
  int inside = std::clamp(domain / stride, 1, ranks);
  const bool is_cut = inside == ranks && inside > 1 && domain % (stride * ranks) != 0;
  if (is_cut) --inside;
  while (ranks % inside != 0) --inside;
  return {ranks, inside};
}

double BusBandwidth(const Cluster& cluster, const RankGroup& group) {
  const double inside = kDomainShare * cluster.gpu.link.bandwidth;
  if (!group.crosses_domains()) return inside;
  const double cards = kNetworkShare * cluster.network.bandwidth * group.in_domain;
  return std::min(inside, cards) / (1 + group.ranks / kRanksOfHalfRate);
}

double GatherSeconds(const Cluster& cluster, const RankGroup& group, double bytes) {
  if (group.ranks <= 1) return 0;
  const Link& slowest = SlowestLink(cluster, group);
  return bytes * (group.ranks - 1) / group.ranks / BusBandwidth(cluster, group) +
         (group.ranks - 1) * slowest.latency;
}

double AllReduceSeconds(const Cluster& cluster, const RankGroup& group, double bytes) {
  const double ring = 2 * GatherSeconds(cluster, group, bytes);
  if (!group.crosses_domains() || cluster.gpu.is_cpu) return ring;
  const double inside = kDomainShare * cluster.gpu.link.bandwidth;
  const double cards = kNetworkShare * cluster.network.bandwidth * group.in_domain;
  const double domains = static_cast<double>(group.ranks) / group.in_domain;
  const double hops = std::ceil(std::log2(domains)) * cluster.network.latency +
                      (group.in_domain - 1) * cluster.gpu.link.latency;
  return std::min(ring, 2 * (bytes / (kTreeShare * std::min(inside, cards)) + hops));
}

double AllToAllSeconds(const Cluster& cluster, const RankGroup& group, double bytes,
                       double crossing) {
  if (group.ranks <= 1) return 0;
  const double outside = crossing * bytes * (group.ranks - group.in_domain) / group.ranks;
  const double inside = bytes * (group.in_domain - 1) / group.ranks;
  const double latency = group.crosses_domains() ? cluster.network.latency : 0;
  return std::max(outside / (kAllToAllShare * cluster.network.bandwidth),
                  inside / (kAllToAllShare * cluster.gpu.link.bandwidth)) +
         latency + group.ranks * cluster.gpu.link.latency / 4;
}

double MessageSeconds(const Link& link, double bytes) {
  return bytes / (kNetworkShare * link.bandwidth) + 2 * link.latency;
}

void UseMeasured(const MeasuredLinks& measured, Cluster* cluster) {
  const auto use = [](double bandwidth, double latency, double share, Link* link) {
    if (bandwidth <= 0) return;
    link->name = "measured";
    link->bandwidth = bandwidth / share;
    if (latency > 0) link->latency = latency;
  };
  use(measured.domain_bus, measured.domain_latency, kDomainShare, &cluster->gpu.link);
  use(measured.network_pair, measured.network_latency, kNetworkShare, &cluster->network);
}

const Link& SlowestLink(const Cluster& cluster, const RankGroup& group) {
  return group.crosses_domains() ? cluster.network : cluster.gpu.link;
}

}  // namespace convene::worker
