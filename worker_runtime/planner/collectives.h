// PURE. The time of a collective of some ranks, of which so many share a domain of fast links.
#pragma once

#include "worker_runtime/planner/hardware.h"

namespace convene::worker {

struct RankGroup {
  int ranks = 1;
  int in_domain = 1;  // of these as many as share a domain; divides `ranks`, or is `ranks`

  bool crosses_domains() const { return ranks > in_domain; }
};

// A group of `ranks` whose neighbours lie `stride` ranks apart, in the cluster's domains. Where
// domains are no multiple of what such a group spans, some groups lie on both sides of a border,
// and these set the pace: tensor-parallel pairs in machines of 7. REQUIRES: the cluster's GPUs are
// a multiple of stride * ranks.
RankGroup GroupIn(const Cluster& cluster, int stride, int ranks);

// Bytes a second with which each rank of a ring sends (nccl-tests' bus bandwidth). In one domain a
// constant share of the link. Between domains each rank has a network card, and a ring takes as
// many cards as the group has ranks in a domain. The rate falls with the number of ranks as
// 1 / (1 + ranks / 200): hops wait for each other, and links are shared. The Ultra-Scale Playbook
// (shared/reference/trainers.md 2.6) measured 185, 119, 69, 55, 28 and 11 GB/s on 2 to 64 nodes of
// 8 H100, which is a steeper fall; Megatron-LM's weak scaling on 48 nodes shows a flatter one.
double BusBandwidth(const Cluster& cluster, const RankGroup& group);

// Seconds of an all-gather or a reduce-scatter of `bytes` in all: (n - 1) / n of them pass each
// rank, in n - 1 hops.
double GatherSeconds(const Cluster& cluster, const RankGroup& group, double bytes);
// Of an all-reduce: both of the above on a ring, or up and down a tree of the domains, whichever
// NCCL finds faster. A tree has few hops, so its rate does not fall with the number of ranks. Gloo,
// between ranks on CPUs, has no tree.
double AllReduceSeconds(const Cluster& cluster, const RankGroup& group, double bytes);
// Of an all-to-all in which each rank has `bytes` for all ranks together. Of what goes to other
// domains the share `crossing` crosses the network.
double AllToAllSeconds(const Cluster& cluster, const RankGroup& group, double bytes,
                       double crossing = 1);
// Of one message to a neighbour.
double MessageSeconds(const Link& link, double bytes);

// Links as they were measured; 0: not. The shares of a link that protocols leave are taken off
// again, so that the times above become those that were measured.
struct MeasuredLinks {
  double domain_bus = 0;      // bus bandwidth in one domain, bytes a second
  double domain_latency = 0;  // seconds of a hop
  double network_pair = 0;    // of each direction between two machines, bytes a second
  double network_latency = 0;
};
// The cluster's links become "measured", where they are.
void UseMeasured(const MeasuredLinks& measured, Cluster* cluster);

// The link on which the group's slowest hop goes.
const Link& SlowestLink(const Cluster& cluster, const RankGroup& group);

}  // namespace convene::worker
