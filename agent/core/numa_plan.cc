#include "agent/core/numa_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace convene::agent {
namespace {

using CpuList = std::vector<int>;

// The CPUs in groups that have one `key`, by the groups' first CPU.
std::map<int, CpuList> GroupBy(const std::vector<NumaCpu>& cpus, int NumaCpu::*key) {
  std::map<int, CpuList> by_key;
  for (const NumaCpu& cpu : cpus) by_key[cpu.*key].push_back(cpu.cpu);
  std::map<int, CpuList> groups;
  for (auto& [value, group] : by_key) {
    std::sort(group.begin(), group.end());
    groups[group.front()] = std::move(group);
  }
  return groups;
}

std::vector<NumaCpu> OfNode(const std::vector<NumaCpu>& cpus, int node) {
  std::vector<NumaCpu> found;
  for (const NumaCpu& cpu : cpus) {
    if (cpu.node == node) found.push_back(cpu);
  }
  return found;
}

CpuList Numbers(const std::vector<NumaCpu>& cpus) {
  CpuList numbers;
  for (const NumaCpu& cpu : cpus) numbers.push_back(cpu.cpu);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// A node belongs, with all its CPUs, to the socket of its first CPU.
int SocketOf(const std::vector<NumaCpu>& of_node) {
  return std::min_element(of_node.begin(), of_node.end(),
                          [](const auto& a, const auto& b) { return a.cpu < b.cpu; })
      ->socket;
}

CpuList SocketCpus(const std::vector<NumaCpu>& cpus, int socket) {
  std::set<int> nodes;
  for (const NumaCpu& cpu : cpus) nodes.insert(cpu.node);
  CpuList all;
  for (const int node : nodes) {
    const std::vector<NumaCpu> of_node = OfNode(cpus, node);
    if (SocketOf(of_node) != socket) continue;
    const CpuList numbers = Numbers(of_node);
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  std::sort(all.begin(), all.end());
  return all;
}

// `index`: the device's place among the `devices` of its node.
absl::StatusOr<CpuList> ExclusiveCpus(const std::vector<NumaCpu>& of_node, int index, int devices) {
  const std::map<int, CpuList> cores = GroupBy(of_node, &NumaCpu::core);
  const int count = static_cast<int>(cores.size());
  if (count < devices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--numa-binding exclusive: NUMA node ", of_node.front().node, " has ", count,
        " usable cores for ", devices, " workers or devices; use core-complex or node"));
  }
  const int share = count / devices;
  const int extra = count % devices;
  const int begin = index * share + std::min(index, extra);
  const int end = begin + share + (index < extra ? 1 : 0);
  CpuList chosen;
  int at = 0;
  for (const auto& [first, core] : cores) {
    if (at >= begin && at < end) chosen.insert(chosen.end(), core.begin(), core.end());
    ++at;
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

CpuList ComplexCpus(const std::vector<NumaCpu>& of_node, int index) {
  std::vector<CpuList> complexes;
  for (const auto& [first, group] : GroupBy(of_node, &NumaCpu::cache)) complexes.push_back(group);
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const CpuList& a, const CpuList& b) { return a.size() > b.size(); });
  return complexes[static_cast<size_t>(index) % complexes.size()];
}

std::vector<int> SpreadOverNodes(const std::vector<NumaCpu>& cpus, int workers) {
  std::set<int> distinct;
  for (const NumaCpu& cpu : cpus) distinct.insert(cpu.node);
  const std::vector<int> nodes(distinct.begin(), distinct.end());
  std::vector<int> node_of(workers);
  for (int i = 0; i < workers; ++i) {
    node_of[i] = nodes[static_cast<size_t>(i) * nodes.size() / static_cast<size_t>(workers)];
  }
  return node_of;
}

}  // namespace

absl::StatusOr<std::vector<CpuList>> PlanNuma(NumaBinding binding, const std::vector<NumaCpu>& cpus,
                                              std::vector<int> device_nodes, int workers) {
  std::vector<CpuList> plan(workers);
  if (binding == NumaBinding::kNone) return plan;
  if (cpus.empty()) return absl::InvalidArgumentError("--numa-binding: no CPU may be used");
  if (static_cast<int>(device_nodes.size()) < workers) {
    device_nodes = SpreadOverNodes(cpus, workers);
  }
  for (int i = 0; i < workers; ++i) {
    const int node = device_nodes[i];
    const std::vector<NumaCpu> of_node = OfNode(cpus, node);
    if (of_node.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--numa-binding: the device of local rank ", i, " stands on NUMA node ",
                       node, ", of which this process may use no CPU (see `taskset -p $$`)"));
    }
    const int index =
        static_cast<int>(std::count(device_nodes.begin(), device_nodes.begin() + i, node));
    const int devices =
        static_cast<int>(std::count(device_nodes.begin(), device_nodes.end(), node));
    if (binding == NumaBinding::kNode) {
      plan[i] = Numbers(of_node);
    } else if (binding == NumaBinding::kSocket) {
      plan[i] = SocketCpus(cpus, SocketOf(of_node));
    } else if (binding == NumaBinding::kCoreComplex) {
      plan[i] = ComplexCpus(of_node, index);
    } else {
      auto share = ExclusiveCpus(of_node, index, devices);
      if (!share.ok()) return share.status();
      plan[i] = *std::move(share);
    }
  }
  return plan;
}

}  // namespace convene::agent
