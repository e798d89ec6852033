#include "launcher/doctor/compare.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "rendezvous/net/peer_address.h"
#include "tools/base/text.h"
#include "worker_runtime/bench/report.h"

namespace convene::launcher {
namespace {

using agent::Finding;
using agent::Severity;

constexpr size_t kNamedMax = 4;
constexpr double kClockSeconds = 0.5;
constexpr double kGibibyte = 1 << 30;
constexpr double kSlowFolder = 50e6;  // bytes a second

struct TraitRule {
  const char* name;
  Severity severity;
  const char* why;
  const char* advice;
};

// Fewer bytes fit into a packet on any path.
constexpr int64_t kShortestPacketCut = 1400;

constexpr TraitRule kRules[] = {
    {kBuildTrait, Severity::kWarning, "programs of two builds may not understand each other",
     "install the same package of Convene, or the same container, on all nodes"},
    {kTrainerTrait, Severity::kWarning,
     "a node without convene-train can neither train nor measure",
     "install convene-train in PATH, or beside convene, on all nodes"},
    {"NCCL", Severity::kError, "ranks with different versions of NCCL refuse each other or hang",
     "install the same libnccl2, or the same container, on all nodes"},
    {"driver", Severity::kWarning, "the drivers differ in speed and in what they support",
     "install the same driver on all nodes"},
    {"CUDA", Severity::kWarning, "a program may start on some nodes and not on others",
     "install the same driver on all nodes"},
    {"GPUs", Severity::kWarning, "each step takes as long as the slowest GPU",
     "ask the scheduler for nodes of one kind; a GPU that is missing may have fallen off the bus"},
    {"RDMA ports", Severity::kWarning, "a node with fewer or slower ports slows all of them",
     "look at the ports that are down: ibstat, or `convene doctor` there"},
    {"MTU", Severity::kWarning, "large packets get lost between them, and connections hang",
     "set one MTU on all interfaces and switches: ip link set dev IF mtu 9000"},
    {"link speed", Severity::kWarning, "the slowest link sets the pace",
     "look at the cable and the switch port: ethtool IF"},
    {"locked memory", Severity::kWarning, "RDMA fails on the nodes with the lower limit",
     "set memlock to unlimited on all nodes"},
    {"CPUs", Severity::kNote, "data and launches are slower on the nodes with fewer CPUs",
     "look at the cgroup of the job, and at --cpus-per-task"},
    {"memory", Severity::kNote, "a job that fits on one node may not fit on another",
     "look at the cgroup of the job"},
};
constexpr TraitRule kVariableRule = {"variable", Severity::kWarning,
                                     "ranks that are set up in different ways may hang",
                                     "set it on all nodes alike, or on none"};

bool IsCommonVariable(const std::string& name) {
  for (const char* prefix : {"NCCL_", "TORCH_NCCL_", "GLOO_", "UCX_", "FI_"}) {
    // The names of cards may differ from node to node.
    if (absl::StartsWith(name, prefix)) return !absl::EndsWith(name, "_IFNAME");
  }
  return false;
}

std::string HostsOf(const std::vector<pb::NodeReport>& reports, const std::vector<int>& nodes) {
  std::vector<std::string> hosts;
  for (const int node : nodes) hosts.push_back(reports[node].host());
  return JoinCapped(hosts, kNamedMax);
}

// "580.95 on node1, node2 and 14 more; 570.10 on node7", the most frequent first.
std::string ValuesText(const std::vector<pb::NodeReport>& reports,
                       const std::map<std::string, std::vector<int>>& nodes_of) {
  std::vector<std::pair<std::string, std::vector<int>>> values(nodes_of.begin(), nodes_of.end());
  std::stable_sort(values.begin(), values.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::vector<std::string> texts;
  for (const auto& [value, nodes] : values) {
    texts.push_back(absl::StrCat(value.empty() ? "none" : value, " on ", HostsOf(reports, nodes)));
  }
  return JoinCapped(texts, kNamedMax);
}

// The nodes by their value of a trait; "": they have none.
std::map<std::string, std::vector<int>> NodesByTrait(const std::vector<pb::NodeReport>& reports,
                                                     const std::string& name) {
  std::map<std::string, std::vector<int>> nodes_of;
  for (size_t node = 0; node < reports.size(); ++node) {
    const auto trait = reports[node].traits().find(name);
    const bool has = trait != reports[node].traits().end();
    nodes_of[has ? trait->second : ""].push_back(static_cast<int>(node));
  }
  return nodes_of;
}

// Several domains are the usual state of several racks; several cliques of one domain are not.
void CompareDomains(const std::vector<pb::NodeReport>& reports, std::vector<Finding>* findings) {
  const auto domains = NodesByTrait(reports, kDomainTrait);
  if (domains.size() > 1) {
    findings->push_back({Severity::kNote, "nodes differ",
                         absl::StrCat(kDomainTrait, ": ", ValuesText(reports, domains)),
                         "between domains the GPUs reach each other by the network alone",
                         "keep groups of tensor and expert parallelism inside of one domain; "
                         "`convene run` gives the nodes of one domain neighbouring ranks"});
    return;
  }
  const auto cliques = NodesByTrait(reports, kCliqueTrait);
  if (cliques.size() < 2) return;
  findings->push_back({Severity::kWarning, "nodes differ",
                       absl::StrCat(kCliqueTrait, ": ", ValuesText(reports, cliques)),
                       "one NVLink domain is split: between its cliques the GPUs reach each other "
                       "by the network alone",
                       "look at the partitions of the switches (NMX), and at nvidia-imex"});
}

void CompareTrait(const TraitRule& rule, const std::string& name,
                  const std::vector<pb::NodeReport>& reports, std::vector<Finding>* findings) {
  const std::map<std::string, std::vector<int>> nodes_of = NodesByTrait(reports, name);
  if (nodes_of.size() < 2) return;
  // Where some have none a program may bring its own, as PyTorch's wheels bring NCCL.
  const bool some_have_none = nodes_of.contains("");
  const Severity severity =
      some_have_none ? std::min(rule.severity, Severity::kWarning) : rule.severity;
  findings->push_back({severity, "nodes differ",
                       absl::StrCat(name, ": ", ValuesText(reports, nodes_of)), rule.why,
                       rule.advice});
}

void CompareTraits(const std::vector<pb::NodeReport>& reports, std::vector<Finding>* findings) {
  const size_t before = findings->size();
  for (const TraitRule& rule : kRules) CompareTrait(rule, rule.name, reports, findings);
  CompareDomains(reports, findings);
  std::set<std::string> variables;
  for (const pb::NodeReport& report : reports) {
    for (const auto& [name, value] : report.traits()) {
      if (IsCommonVariable(name)) variables.insert(name);
    }
  }
  for (const std::string& name : variables) CompareTrait(kVariableRule, name, reports, findings);
  if (findings->size() != before) return;
  findings->push_back({Severity::kGood, "nodes",
                       absl::StrCat(reports.size(),
                                    " nodes are alike in versions, GPUs, network, "
                                    "limits and variables")});
}

using rendezvous::IsLoopback;

// "node7" of "node7.example.org".
std::string FirstLabel(const std::string& name) { return name.substr(0, name.find('.')); }

// Nodes by what is wrong with their names, each with the nodes that see it.
struct NameFaults {
  std::map<int, std::vector<int>> unnamed, misled, exchanged, nameless;
  std::map<int, std::string> elsewhere;    // where a name leads
  std::map<int, std::string> others_name;  // that an address has
};

// Names both ways: a node's name should lead to it, and its address should have no other node's
// name.
NameFaults FindNameFaults(const std::vector<pb::NodeReport>& reports,
                          const std::vector<pb::NodeProbes>& probes) {
  NameFaults faults;
  std::set<std::string> names;
  for (const pb::NodeReport& report : reports) names.insert(FirstLabel(report.host()));
  for (size_t from = 0; from < probes.size(); ++from) {
    for (const pb::PeerProbe& peer : probes[from].peers()) {
      const pb::NodeReport& target = reports[peer.node()];
      const auto note = [&](std::map<int, std::vector<int>>& nodes) {
        nodes[peer.node()].push_back(static_cast<int>(from));
      };
      if (!peer.name_error().empty()) note(faults.unnamed);
      if (IsLoopback(target.address())) continue;  // One machine is several nodes.
      const auto& own = target.addresses();
      const auto& named = peer.named_addresses();
      const auto is_own = [&](const std::string& address) {
        return !IsLoopback(address) && std::find(own.begin(), own.end(), address) != own.end();
      };
      const bool tells_addresses = !own.empty();  // An older build does not.
      if (tells_addresses && !named.empty() && std::none_of(named.begin(), named.end(), is_own)) {
        note(faults.misled);
        faults.elsewhere.emplace(peer.node(), named[0]);
      }
      const std::string name = FirstLabel(peer.address_name());
      if (names.contains(name) && name != FirstLabel(target.host())) {
        note(faults.exchanged);
        faults.others_name.emplace(peer.node(), peer.address_name());
      }
      // A name that was looked up leads somewhere or has an error: else no time was left for it.
      const bool is_looked_up = !named.empty() || !peer.name_error().empty();
      if (is_looked_up && peer.address_name().empty() && peer.connect_error().empty()) {
        note(faults.nameless);
      }
    }
  }
  return faults;
}

void CheckNames(const std::vector<pb::NodeReport>& reports,
                const std::vector<pb::NodeProbes>& probes, std::vector<Finding>* findings) {
  const NameFaults faults = FindNameFaults(reports, probes);
  const auto add = [&](Severity severity, const std::string& what, const char* why,
                       const char* advice) {
    findings->push_back({severity, "names", what, why, advice});
  };
  for (const auto& [node, from] : faults.unnamed) {
    add(Severity::kNote,
        absl::StrCat("the name ", reports[node].host(), " is unknown on ", HostsOf(reports, from)),
        "programs that meet by host name (ssh, MPI, tcp://) do not find it",
        "add it to DNS or to /etc/hosts");
  }
  for (const auto& [node, from] : faults.misled) {
    add(Severity::kWarning,
        absl::StrCat("the name ", reports[node].host(), " leads to ", faults.elsewhere.at(node),
                     " on ", HostsOf(reports, from), ", which is no address of that node"),
        "programs that meet by host name (ssh, MPI, tcp://) wait for another machine",
        "mend its line in /etc/hosts there, or its record in DNS");
  }
  for (const auto& [node, from] : faults.exchanged) {
    add(Severity::kWarning,
        absl::StrCat("the address ", reports[node].address(), " of ", reports[node].host(),
                     " has the name ", faults.others_name.at(node), " on ", HostsOf(reports, from)),
        "logs, sshd and MPI take the one node for the other",
        "mend the reverse record in DNS, or /etc/hosts there");
  }
  if (faults.nameless.empty()) return;
  std::vector<int> nodes;
  for (const auto& [node, from] : faults.nameless) nodes.push_back(node);
  add(Severity::kNote,
      absl::StrCat("the addresses of ", HostsOf(reports, nodes), " have no names on ",
                   HostsOf(reports, faults.nameless.begin()->second)),
      "sshd and MPI look the names of addresses up, and some wait seconds for an answer",
      "add reverse records to DNS, or lines to /etc/hosts");
}

// Nodes that others do not reach.
void CheckWays(const std::vector<pb::NodeReport>& reports,
               const std::vector<pb::NodeProbes>& probes, std::vector<Finding>* findings) {
  std::map<int, std::vector<int>> unreached;  // by the node that was looked for
  std::map<int, std::string> reason;
  double slowest = 0;
  size_t ways = 0;
  for (size_t node = 0; node < probes.size(); ++node) {
    for (const pb::PeerProbe& peer : probes[node].peers()) {
      ++ways;
      slowest = std::max(slowest, peer.round_trip_seconds());
      if (!peer.connect_error().empty()) {
        unreached[peer.node()].push_back(static_cast<int>(node));
        reason.emplace(peer.node(), peer.connect_error());
      }
    }
  }
  for (const auto& [node, from] : unreached) {
    const pb::NodeReport& target = reports[node];
    findings->push_back(
        {Severity::kError, "ways",
         absl::StrCat(target.host(), " (", target.address(), " port ", target.port(),
                      ") does not answer ", HostsOf(reports, from), ": ", reason[node]),
         "ranks connect to each other at ports that the kernel chooses",
         "open all TCP ports between the nodes (firewall, security group, NetworkPolicy), or name "
         "the right address by --local-addr"});
  }
  if (!unreached.empty()) return;
  // A node that got slow answers has tried only some.
  const size_t all = reports.size() * (reports.size() - 1);
  const std::string tried =
      ways == all ? absl::StrCat("all ", all) : absl::StrCat(ways, " of ", all);
  findings->push_back({Severity::kGood, "ways",
                       absl::StrFormat("%s ways between the nodes are open, the slowest answer "
                                       "took %.2f ms",
                                       tried, slowest * 1e3)});
}

// Each clock by the median of what the others see.
void CheckClocks(const std::vector<pb::NodeReport>& reports,
                 const std::vector<pb::NodeProbes>& probes, std::vector<Finding>* findings) {
  // A clock that is off disagrees with all others, the median one with none.
  std::map<int, std::vector<double>> seen;
  for (const pb::NodeProbes& each : probes) {
    for (const pb::PeerProbe& peer : each.peers()) {
      if (peer.connect_error().empty()) seen[peer.node()].push_back(peer.clock_ahead_seconds());
    }
  }
  double largest = 0;
  for (auto& [node, ahead] : seen) {
    std::sort(ahead.begin(), ahead.end());
    // Of an even number the middle one that agrees: of three nodes one clock alone is off.
    const double lower = ahead[(ahead.size() - 1) / 2], upper = ahead[ahead.size() / 2];
    const double median = std::abs(lower) < std::abs(upper) ? lower : upper;
    largest = std::max(largest, std::abs(median));
    if (std::abs(median) < kClockSeconds) continue;
    findings->push_back({Severity::kWarning, "clocks",
                         absl::StrFormat("the clock of %s is %.1f s %s", reports[node].host(),
                                         std::abs(median), median > 0 ? "fast" : "slow"),
                         "logs of nodes do not line up, and certificates and tokens may be refused",
                         "start chrony or systemd-timesyncd there"});
  }
  if (largest >= kClockSeconds) return;
  findings->push_back(
      {Severity::kGood, "clocks", absl::StrFormat("at most %.3f s apart", largest)});
}

void CheckFolders(const std::vector<pb::NodeReport>& reports,
                  const std::vector<pb::NodeProbes>& probes, std::vector<Finding>* findings) {
  const int nodes = static_cast<int>(reports.size());
  for (int folder = 0; folder < reports[0].folders_size(); ++folder) {
    const std::string& path = reports[0].folders(folder).path();
    std::vector<int> blind, slow;
    int seen_others = 0;
    double slowest = 0;
    for (int node = 0; node < nodes; ++node) {
      const int seen =
          folder < probes[node].files_seen_size() ? probes[node].files_seen(folder) : 0;
      if (seen < nodes) blind.push_back(node);
      seen_others += std::max(seen - 1, 0);
      const double speed = folder < reports[node].folders_size()
                               ? reports[node].folders(folder).write_bytes_per_second()
                               : 0;
      slowest = node == 0 ? speed : std::min(slowest, speed);
      if (speed < kSlowFolder) slow.push_back(node);
    }
    if (seen_others == 0) {
      findings->push_back({Severity::kNote, "shared folder",
                           absl::StrCat(path, " is another folder on each node"),
                           "a checkpoint there is whole only where one node writes it",
                           "name a folder of a shared file system for checkpoints"});
      continue;
    }
    if (!blind.empty()) {
      findings->push_back({Severity::kError, "shared folder",
                           absl::StrCat(path, ": ", HostsOf(reports, blind),
                                        " did not see the files of all nodes within seconds"),
                           "a node may read an older checkpoint than the others have",
                           "check the mount there, and its attribute cache (NFS: actimeo, noac)"});
      continue;
    }
    findings->push_back({slow.empty() ? Severity::kGood : Severity::kNote, "shared folder",
                         absl::StrFormat("%s is one folder on all nodes; the slowest wrote %.0f "
                                         "MB/s",
                                         path, slowest / 1e6),
                         slow.empty() ? "" : "a step may wait for its checkpoint",
                         slow.empty() ? "" : "save less often, or on a faster file system"});
  }
}

// Of GPUs that are all in one part of a domain over nodes.
void AddDomain(const std::vector<agent::Gpu>& gpus, std::map<std::string, std::string>* traits) {
  if (gpus.empty()) return;
  const agent::Gpu& first = gpus.front();
  const bool is_none = first.cluster_uuid.find_first_not_of('0') == std::string::npos;
  const bool are_one = std::all_of(gpus.begin(), gpus.end(), [&](const agent::Gpu& gpu) {
    return gpu.cluster_uuid == first.cluster_uuid && gpu.clique == first.clique;
  });
  if (is_none || !are_one) return;
  (*traits)[kDomainTrait] = first.cluster_uuid;
  (*traits)[kCliqueTrait] = absl::StrCat(first.clique);
}

}  // namespace

std::map<std::string, std::string> TraitsOf(const agent::MachineFacts& facts,
                                            const std::string& address) {
  std::map<std::string, std::string> traits;
  traits["CPUs"] = absl::StrCat(facts.cpus);
  traits["memory"] =
      absl::StrFormat("%.0f GiB", static_cast<double>(facts.memory_bytes) / kGibibyte);
  traits["locked memory"] = facts.limits.locked_bytes == agent::kUnlimited
                                ? "unlimited"
                                : HumanBytes(static_cast<double>(facts.limits.locked_bytes));
  std::map<std::string, int> gpus, ports;
  for (const agent::Gpu& gpu : facts.gpu_driver.gpus) ++gpus[gpu.name];
  for (const agent::RdmaPort& port : facts.rdma_ports) {
    if (port.state == "ACTIVE") ++ports[port.rate];
  }
  const auto counted = [](const std::map<std::string, int>& counts) {
    return absl::StrJoin(counts, ", ", [](std::string* out, const auto& item) {
      absl::StrAppend(out, item.second, " x ", item.first);
    });
  };
  traits["GPUs"] = counted(gpus);
  traits["RDMA ports"] = counted(ports);
  AddDomain(facts.gpu_driver.gpus, &traits);
  traits["driver"] = facts.gpu_driver.version;
  traits["CUDA"] = facts.gpu_driver.cuda;
  traits["NCCL"] = facts.nccl;
  for (const agent::Interface& interface : facts.interfaces) {
    const auto& own = interface.addresses;
    if (std::find(own.begin(), own.end(), address) == own.end()) continue;
    traits["MTU"] = absl::StrCat(interface.mtu);
    if (interface.megabits > 0) traits["link speed"] = absl::StrCat(interface.megabits, " Mbit/s");
  }
  for (const auto& [name, value] : facts.environment) {
    if (IsCommonVariable(name)) traits[name] = value;
  }
  return traits;
}

std::vector<Finding> CompareNodes(const std::vector<pb::NodeReport>& reports,
                                  const std::vector<pb::NodeProbes>& probes) {
  std::vector<Finding> findings;
  if (reports.size() < 2) return findings;
  CompareTraits(reports, &findings);
  CheckWays(reports, probes, &findings);
  CheckNames(reports, probes, &findings);
  CheckClocks(reports, probes, &findings);
  CheckFolders(reports, probes, &findings);
  return findings;
}

Finding CollectiveFinding(const worker::BenchResult& result) {
  std::vector<std::string> sizes;
  int64_t wrong = 0;
  for (const worker::BenchRow& row : result.rows) {
    wrong += row.wrong.value_or(0);
    sizes.push_back(absl::StrFormat("%s %.3g ms %.2f GB/s",
                                    HumanBytes(static_cast<double>(row.bytes)), row.seconds * 1e3,
                                    worker::BusBandwidth(row, result.ranks) / 1e9));
  }
  const std::string table = absl::StrCat(result.ranks, " ranks over ", result.transport,
                                         ", time and busbw: ", absl::StrJoin(sizes, ", "));
  if (wrong == 0) return {Severity::kGood, "all_reduce", table};
  return {Severity::kError, "all_reduce", absl::StrCat(wrong, " elements are wrong; ", table),
          "a training would learn from wrong gradients",
          "find the node by `convene bench` on half of them; then its memory, GPUs and card"};
}

Finding UnmeasuredLinks(const std::string& why) {
  const size_t line_end = why.find_last_of('\n');
  const std::string last = line_end == std::string::npos ? why : why.substr(line_end + 1);
  // "world all_reduce #17 (131072 B): rank 1 did not answer in time", by comm/.
  int64_t bytes = 0;
  const std::string before = last.substr(0, last.rfind(" B): "));
  const bool is_long =
      absl::SimpleAtoi(before.substr(before.rfind('(') + 1), &bytes) && bytes > kShortestPacketCut;
  if (is_long && absl::StrContains(last, "did not answer in time")) {
    return {Severity::kError, "links", absl::StrCat("a long message did not arrive: ", last),
            "short messages do arrive: a path that swallows long packets (MTU) is the usual cause",
            "try ping -M do -s 8972 HOST, or -s 1472, from node to node; give all interfaces, "
            "switches and tunnels one MTU"};
  }
  return {Severity::kWarning, "links", absl::StrCat("they could not be measured: ", last),
          "the nodes' connections are as good as untried",
          "try `convene bench --pairs` in place of the program"};
}

std::vector<Finding> LinkFindings(const worker::BenchResult& result) {
  const worker::PairTable table = result.pairs.value_or(worker::PairTable());
  // The bench names hosts; two nodes may have one name.
  const worker::SlowSpots spots = worker::FindSlowSpots(table);
  std::vector<Finding> findings;
  if (spots.is_uneven) {
    findings.push_back({Severity::kNote, "links",
                        absl::StrFormat("most links of more than half of the nodes have less than "
                                        "0.7 of the usual speed, %.2f GB/s",
                                        spots.usual / 1e9),
                        "links differ by place (racks, switches), or other work ran on the nodes",
                        "look again on idle nodes; --topology keeps nodes of one place together"});
  }
  for (const int member : spots.members) {
    findings.push_back({Severity::kWarning, "links",
                        absl::StrCat("slow node: most links of ", table.members[member],
                                     " have less than 0.7 of the usual speed"),
                        "each step waits for the slowest node",
                        "look at its network card, cable and NUMA place, or leave it out"});
  }
  const size_t size = table.members.size();
  for (size_t i = 0; i < std::min(spots.links.size(), kNamedMax); ++i) {
    const auto [from, to] = spots.links[i];
    findings.push_back(
        {Severity::kWarning, "links",
         absl::StrFormat("slow link: %s - %s, %.2f GB/s", table.members[from], table.members[to],
                         table.bytes_per_second[from * size + to] / 1e9),
         "each step waits for the slowest link", "look at the switches and cables between"});
  }
  if (findings.empty()) {
    findings.push_back({Severity::kGood, "links",
                        absl::StrFormat("usual speed %.2f GB/s over %s, and none is much slower",
                                        spots.usual / 1e9, result.transport)});
  }
  return findings;
}

std::vector<Finding> MergeFindings(const std::vector<pb::NodeReport>& reports) {
  std::vector<std::pair<Finding, std::vector<int>>> merged;
  for (size_t node = 0; node < reports.size(); ++node) {
    for (const pb::Finding& each : reports[node].findings()) {
      const Finding finding = {static_cast<Severity>(each.severity()), each.subject(), each.what(),
                               each.why(), each.advice()};
      if (finding.severity == Severity::kGood) continue;
      const auto same = std::find_if(merged.begin(), merged.end(), [&](const auto& item) {
        const auto key = [](const Finding& f) { return std::tie(f.severity, f.subject, f.what); };
        return key(item.first) == key(finding);
      });
      if (same == merged.end()) {
        merged.push_back({finding, {static_cast<int>(node)}});
      } else {
        same->second.push_back(static_cast<int>(node));
      }
    }
  }
  std::vector<Finding> findings;
  for (auto& [finding, nodes] : merged) {
    const bool is_everywhere = nodes.size() == reports.size() && reports.size() > 1;
    finding.what =
        absl::StrCat(is_everywhere ? "all nodes" : HostsOf(reports, nodes), ": ", finding.what);
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace convene::launcher
