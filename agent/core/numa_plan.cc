#include "agent/core/numa_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

using CpuList = std::vector<int>;

// All functions here take and return CPUs in their order.

// The CPUs in groups that have one `key`, by the groups' first CPU.
std::vector<CpuList> GroupBy(const std::vector<NumaCpu>& cpus, int NumaCpu::*key) {
  std::vector<CpuList> groups;
  std::map<int, size_t> places;
  for (const NumaCpu& cpu : cpus) {
    const auto [place, is_new] = places.try_emplace(cpu.*key, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(cpu.cpu);
  }
  return groups;
}

// A node belongs, with all its CPUs, to the socket of its first CPU.
CpuList SocketCpus(const std::vector<NumaCpu>& cpus, int node) {
  std::map<int, int> socket_of;
  for (const NumaCpu& cpu : cpus) socket_of.try_emplace(cpu.node, cpu.socket);
  CpuList all;
  for (const NumaCpu& cpu : cpus) {
    if (socket_of.at(cpu.node) == socket_of.at(node)) all.push_back(cpu.cpu);
  }
  return all;
}

// `index`: the device's place among the `devices` of its node.
absl::StatusOr<CpuList> ExclusiveCpus(const std::vector<NumaCpu>& of_node, int index, int devices) {
  const std::vector<CpuList> cores = GroupBy(of_node, &NumaCpu::core);
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
  for (int i = begin; i < end; ++i) {
    chosen.insert(chosen.end(), cores[i].begin(), cores[i].end());
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

CpuList ComplexCpus(const std::vector<NumaCpu>& of_node, int index) {
  std::vector<CpuList> complexes = GroupBy(of_node, &NumaCpu::cache);
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

absl::StatusOr<std::vector<CpuList>> PlanNuma(NumaBinding binding, std::vector<NumaCpu> cpus,
                                              std::vector<int> device_nodes, int workers) {
  std::vector<CpuList> plan(workers);
  if (binding == NumaBinding::kNone) return plan;
  if (cpus.empty()) return absl::InvalidArgumentError("--numa-binding: no CPU may be used");
  std::sort(cpus.begin(), cpus.end(),
            [](const NumaCpu& a, const NumaCpu& b) { return a.cpu < b.cpu; });
  if (static_cast<int>(device_nodes.size()) < workers) {
    device_nodes = SpreadOverNodes(cpus, workers);
  }
  for (int i = 0; i < workers; ++i) {
    const int node = device_nodes[i];
    std::vector<NumaCpu> of_node;
    std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(of_node),
                 [&](const NumaCpu& cpu) { return cpu.node == node; });
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
      for (const NumaCpu& cpu : of_node) plan[i].push_back(cpu.cpu);
    } else if (binding == NumaBinding::kSocket) {
      plan[i] = SocketCpus(cpus, node);
    } else if (binding == NumaBinding::kCoreComplex) {
      plan[i] = ComplexCpus(of_node, index);
    } else {
      CONVENE_ASSIGN_OR_RETURN(plan[i], ExclusiveCpus(of_node, index, devices));
    }
  }
  return plan;
}

}  // namespace convene::agent
