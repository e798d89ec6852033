// PURE. Chooses the CPUs of each worker, by torchrun's rules (torch/numa/binding.py, PyTorch 2.15):
//
//   node          all CPUs of the NUMA node of the worker's device
//   socket        all CPUs of the NUMA nodes of that node's socket
//   exclusive     the node's cores in as many shares as it has devices, whole cores; the first
//                 shares have one more where they do not come out even
//   core-complex  one group of CPUs that share a last-level cache; the node's devices take them in
//                 turn, those with most CPUs first
//
// Worker i uses device i. A machine with fewer devices than workers is treated as if it had one for
// each worker, spread evenly over the NUMA nodes: torchrun refuses that.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "agent/options.h"

namespace convene::agent {

// A logical CPU that the agent may run on, and where it stands.
struct NumaCpu {
  int cpu = 0;
  int node = 0;
  int socket = 0;
  int core = 0;   // unique on the machine
  int cache = 0;  // its last-level cache, unique on the machine
};

// The CPUs of each worker, sorted. `device_nodes`: the NUMA node of each device, in the order of
// the devices.
// InvalidArgument: a device's node has no CPU that may be used, or fewer cores than exclusive
// shares.
absl::StatusOr<std::vector<std::vector<int>>> PlanNuma(NumaBinding binding,
                                                       std::vector<NumaCpu> cpus,
                                                       std::vector<int> device_nodes, int workers);

}  // namespace convene::agent
