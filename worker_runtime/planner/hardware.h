// PURE. The tables of `convene plan`: GPUs with their arithmetic and memory, and links. A rank on a
// CPU is one row more.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

struct Link {
  std::string name;
  double bandwidth = 0;  // bytes/s of one GPU, in one direction
  double latency = 0;    // seconds of one hop
};

struct Gpu {
  std::string name;
  double memory_bytes = 0;
  // FLOP/s, dense. fp8 0: the GPU has no 8-bit products.
  double fp32 = 0;
  double bf16 = 0;
  double fp8 = 0;
  double memory_bandwidth = 0;  // bytes/s
  // The part of the peak rates that the power limit leaves when all multiprocessors multiply.
  double sustained = 1;
  Link link;            // to the GPUs of its domain
  int node = 8;         // GPUs of a machine
  int domain = 8;       // GPUs that `link` connects
  std::string network;  // the usual one between machines
  double watts = 0;     // a GPU's share of what its machine takes at full load
  bool is_cpu = false;  // one rank on a CPU: its threads compute and move messages, too
};

struct Cluster {
  Gpu gpu;
  Link network;  // between domains
  int gpus = 1;
};

// Names of the tables below, in their order: "a100", "h100", ..., "cpu"; "ndr400", "roce-200", ...
std::vector<std::string> GpuNames();
std::vector<std::string> NetworkNames();

// NotFound for an unknown name; the text lists the known ones and the nearest.
absl::StatusOr<Gpu> FindGpu(absl::string_view name);
absl::StatusOr<Link> FindNetwork(absl::string_view name);

// Machines of `ranks` GPUs. Of a rack, whose links go beyond its machines, the domain stays.
void SetNode(int ranks, Gpu* gpu);
// Such machines of a kind of the table, with its usual network. REQUIRES: a name of GpuNames().
Cluster UsualCluster(absl::string_view gpu, int node);

}  // namespace convene::worker
