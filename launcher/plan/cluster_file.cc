#include "launcher/plan/cluster_file.h"

#include <yaml-cpp/yaml.h>

#include <map>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

struct NumberKey {
  double* target;
  double unit;
  bool must_be_named;  // of a new GPU
};

constexpr double kGiB = 1024.0 * 1024 * 1024;

}  // namespace

absl::StatusOr<worker::Cluster> ParseCluster(const std::string& text) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("no YAML: ", e.what()));
  }
  if (!root.IsMap()) return absl::InvalidArgumentError("write a map, as `gpu: h100`");
  std::map<std::string, std::string> given;
  for (const auto& item : root) {
    if (!item.first.IsScalar() || !item.second.IsScalar()) {
      return absl::InvalidArgumentError("write one value behind each key, as `node: 8`");
    }
    given[item.first.Scalar()] = item.second.Scalar();
  }
  worker::Cluster cluster;
  double node = 8, domain = 0;
  const bool is_known = worker::FindGpu(given["gpu"]).ok();
  if (is_known) {
    cluster.gpu = *worker::FindGpu(given["gpu"]);
    node = cluster.gpu.node;
    domain = cluster.gpu.domain;
  }
  worker::Gpu& gpu = cluster.gpu;
  const std::string network = given.count("network") > 0 ? given["network"] : gpu.network;
  if (const auto found = worker::FindNetwork(network); found.ok()) cluster.network = *found;
  const std::map<std::string, NumberKey> keys = {
      {"memory_gib", {&gpu.memory_bytes, kGiB, true}},
      {"bf16_tflops", {&gpu.bf16, 1e12, true}},
      {"fp32_tflops", {&gpu.fp32, 1e12, true}},
      {"fp8_tflops", {&gpu.fp8, 1e12, false}},
      {"memory_gb_per_s", {&gpu.memory_bandwidth, 1e9, true}},
      {"link_gb_per_s", {&gpu.link.bandwidth, 1e9, true}},
      {"node", {&node, 1, true}},
      {"domain", {&domain, 1, false}},
      {"watts", {&gpu.watts, 1, false}},
      {"network_gb_per_s", {&cluster.network.bandwidth, 1e9, false}},
      {"network_microseconds", {&cluster.network.latency, 1e-6, false}}};
  std::vector<std::string> names = {"gpu", "network"};
  for (const auto& [name, key] : keys) names.push_back(name);
  for (const auto& [name, value] : given) {
    if (name == "gpu" || name == "network") continue;
    const auto key = keys.find(name);
    if (key == keys.end()) {
      const std::string closest = ClosestMatch(name, names);
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown key ", name, closest.empty() ? "" : "; did you mean " + closest + "?",
          " The keys are ", absl::StrJoin(names, ", ")));
    }
    double number = 0;
    if (!absl::SimpleAtod(value, &number) || !(number > 0) || number > 1e12) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", value, " is no number above 0; write one, as 8 or 3.35"));
    }
    *key->second.target = number * key->second.unit;
  }
  for (const auto& [name, key] : keys) {
    if (!is_known && key.must_be_named && given.count(name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("gpu ", given["gpu"], " is none of ",
                                                     absl::StrJoin(worker::GpuNames(), ", "),
                                                     ", so the file has to name its ", name));
    }
  }
  if (cluster.network.bandwidth == 0) {
    return absl::InvalidArgumentError(absl::StrCat("network ", network, " is none of ",
                                                   absl::StrJoin(worker::NetworkNames(), ", "),
                                                   ", so the file has to name network_gb_per_s"));
  }
  if (!is_known) {
    gpu.name = given["gpu"].empty() ? "the file's GPU" : given["gpu"];
    gpu.link.name = "the file's link";
    gpu.link.latency = 2e-6;
  }
  if (cluster.network.name.empty()) cluster.network.name = network.empty() ? "network" : network;
  if (cluster.network.latency == 0) cluster.network.latency = 5e-6;
  gpu.node = static_cast<int>(node);
  gpu.domain = given.count("domain") > 0 || domain > node ? static_cast<int>(domain) : gpu.node;
  return cluster;
}

absl::StatusOr<worker::Cluster> ReadCluster(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<worker::Cluster> cluster = ParseCluster(text);
  if (!cluster.ok()) return Annotate(cluster.status(), path);
  return cluster;
}

}  // namespace convene::launcher
