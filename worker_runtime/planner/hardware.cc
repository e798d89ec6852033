#include "worker_runtime/planner/hardware.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/check.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

// One direction of one GPU. Generations of NVLink: 12, 18 and 18 doubled links of 25 GB/s.
const Link kNvLink3 = {"NVLink 3", 300e9, 2e-6};
const Link kNvLink4 = {"NVLink 4", 450e9, 2e-6};
const Link kNvLink5 = {"NVLink 5", 900e9, 2e-6};
// 16 lanes. GeForce cards have no direct way to each other: each byte goes through host memory.
const Link kPcie4 = {"PCIe 4", 26e9, 5e-6};
const Link kPcie4ByHost = {"PCIe 4 by the host", 12e9, 10e-6};
// Gloo over a machine's own sockets.
const Link kSockets = {"Gloo", 1.2e9, 40e-6};

// Vendors' data sheets, without sparsity. Memory: what the driver reports. Watts: DGX A100 6.5 kW,
// DGX H100 and H200 10.2 kW, DGX B200 14.3 kW, GB200 NVL72 120 kW; the last two are usual servers.
const std::vector<Gpu>& Gpus() {
  static const auto* const gpus = new std::vector<Gpu>{
      {"a100", 80 * kGiB, 19.5e12, 312e12, 0, 2.04e12, 0.98, kNvLink3, 8, 8, "hdr200", 812},
      {"h100", 79.6 * kGiB, 67e12, 989e12, 1979e12, 3.35e12, 0.82, kNvLink4, 8, 8, "ndr400", 1275},
      {"h200", 140.4 * kGiB, 67e12, 989e12, 1979e12, 4.8e12, 0.82, kNvLink4, 8, 8, "ndr400", 1275},
      {"b200", 179 * kGiB, 75e12, 2250e12, 4500e12, 7.7e12, 0.82, kNvLink5, 8, 8, "ndr400", 1790},
      {"gb200", 185 * kGiB, 80e12, 2500e12, 5000e12, 8e12, 0.86, kNvLink5, 4, 72, "ndr400", 1667},
      {"l40s", 44.9 * kGiB, 91.6e12, 362e12, 733e12, 0.864e12, 0.75, kPcie4, 8, 8, "roce-200", 550},
      {"rtx-4090", 24 * kGiB, 82.6e12, 165e12, 330e12, 1.008e12, 0.9, kPcie4ByHost, 8, 8, "eth-25",
       600},
      // One thread of a server with AVX2, until `convene bench compute` says more.
      {"cpu", 4 * kGiB, 40e9, 40e9, 0, 8e9, 1, kSockets, 8, 8, "eth-10", 10, /*is_cpu=*/true}};
  return *gpus;
}

const std::vector<Link>& Networks() {
  static const auto* const networks = new std::vector<Link>{
      {"hdr200", 25e9, 5e-6},     {"ndr400", 50e9, 5e-6},     {"xdr800", 100e9, 5e-6},
      {"roce-100", 12.5e9, 8e-6}, {"roce-200", 25e9, 8e-6},   {"roce-400", 50e9, 8e-6},
      {"eth-10", 1.25e9, 30e-6},  {"eth-25", 3.125e9, 30e-6}, {"eth-100", 12.5e9, 30e-6},
      {"eth-200", 25e9, 30e-6}};
  return *networks;
}

template <typename T>
std::vector<std::string> NamesOf(const std::vector<T>& all) {
  std::vector<std::string> names;
  for (const T& one : all) names.push_back(one.name);
  return names;
}

template <typename T>
absl::StatusOr<T> Find(const std::vector<T>& all, absl::string_view name, absl::string_view kind) {
  for (const T& one : all) {
    if (one.name == name) return one;
  }
  const std::vector<std::string> names = NamesOf(all);
  const std::string closest = ClosestMatch(name, names);
  return absl::NotFoundError(absl::StrCat(
      "no ", kind, " is named ", name, closest.empty() ? "" : "; did you mean " + closest + "?",
      " The names are ", absl::StrJoin(names, ", "), "; --cluster FILE describes another ", kind));
}

}  // namespace

std::vector<std::string> GpuNames() { return NamesOf(Gpus()); }
std::vector<std::string> NetworkNames() { return NamesOf(Networks()); }

absl::StatusOr<Gpu> FindGpu(absl::string_view name) { return Find(Gpus(), name, "GPU"); }
absl::StatusOr<Link> FindNetwork(absl::string_view name) {
  return Find(Networks(), name, "network");
}

void SetNode(int ranks, Gpu* gpu) {
  const bool is_rack = gpu->domain > gpu->node;
  gpu->node = ranks;
  if (!is_rack) gpu->domain = ranks;
}

Cluster UsualCluster(absl::string_view gpu, int node) {
  const absl::StatusOr<Gpu> found = FindGpu(gpu);
  CONVENE_CHECK(found.ok());
  Cluster cluster = {.gpu = *found};
  const absl::StatusOr<Link> network = FindNetwork(cluster.gpu.network);
  CONVENE_CHECK(network.ok());
  cluster.network = *network;
  SetNode(node, &cluster.gpu);
  return cluster;
}

}  // namespace convene::worker
