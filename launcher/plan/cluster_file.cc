#include "launcher/plan/cluster_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
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

using Values = std::map<std::string, std::string>;

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr char kFileLink[] = "the file's link";
constexpr char kFileNetwork[] = "the file's network";
constexpr double kNumberMax = 1e12;
constexpr double kNodeMax = 1 << 20;  // GPUs

// A key whose value is a number, in this unit.
struct NumberKey {
  double* target;
  double unit;
  bool must_be_named;     // of a new GPU
  bool is_whole = false;  // GPUs
};

absl::StatusOr<Values> ReadMap(const std::string& text) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("no YAML: ", e.what()));
  }
  if (!root.IsMap()) return absl::InvalidArgumentError("write a map, as `gpu: h100`");
  Values given;
  for (const auto& item : root) {
    if (!item.first.IsScalar() || !item.second.IsScalar()) {
      return absl::InvalidArgumentError("write one value behind each key, as `node: 8`");
    }
    const std::string key = item.first.Scalar();
    if (!given.emplace(key, item.second.Scalar()).second) {
      return absl::InvalidArgumentError(absl::StrCat(key, " stands there twice; remove one line"));
    }
  }
  return given;
}

absl::Status SetNumbers(const Values& given, const std::map<std::string, NumberKey>& keys) {
  std::vector<std::string> names = {"gpu", "network"};
  for (const auto& [name, key] : keys) names.push_back(name);
  for (const auto& [name, value] : given) {
    if (name == "gpu" || name == "network") continue;
    const auto key = keys.find(name);
    if (key == keys.end()) {
      const std::string closest = ClosestMatch(name, names);
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown key ", name, closest.empty() ? "." : "; did you mean " + closest + "?",
          " The keys are ", absl::StrJoin(names, ", ")));
    }
    double number = 0;
    if (!absl::SimpleAtod(value, &number) || !(number > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", value, " is no number above 0; write one, as 8 or 3.35"));
    }
    if (number > kNumberMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", value, " is too large; its unit is in its name"));
    }
    if (key->second.is_whole && number != std::floor(number)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", value, " is no whole number; write one, as 8"));
    }
    *key->second.target = number * key->second.unit;
  }
  return absl::OkStatus();
}

// A GPU that the tables do not have is described whole.
absl::Status CheckGpu(const Values& given, const std::map<std::string, NumberKey>& keys,
                      const worker::Cluster& cluster) {
  const bool is_known = worker::FindGpu(cluster.gpu.name).ok();
  for (const auto& [name, key] : keys) {
    if (is_known || !key.must_be_named || given.count(name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("gpu ", cluster.gpu.name, " is none of ",
                                                   absl::StrJoin(worker::GpuNames(), ", "),
                                                   ", so the file has to name its ", name));
  }
  return absl::OkStatus();
}

// So is a network.
absl::Status CheckNetwork(const worker::Cluster& cluster) {
  if (cluster.network.bandwidth > 0) return absl::OkStatus();
  const std::string names = absl::StrJoin(worker::NetworkNames(), ", ");
  if (cluster.network.name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("network is missing; write network: NAME, of ", names,
                     " or a new one with its network_gb_per_s, or give --network"));
  }
  return absl::InvalidArgumentError(absl::StrCat("network ", cluster.network.name, " is none of ",
                                                 names,
                                                 ", so the file has to name network_gb_per_s"));
}

// The planner has one link for all GPUs of a machine.
absl::Status CheckDomain(double domain, double node) {
  if (domain >= node) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "domain: ", domain, " is below node: ", node,
      ", and the plan has one link for all GPUs of a machine; leave domain out and give "
      "link_gb_per_s of the slowest link of a machine, or write node: ",
      domain, " to plan with the network between such groups"));
}

}  // namespace

absl::StatusOr<worker::Cluster> ParseCluster(const std::string& text, bool needs_network) {
  CONVENE_ASSIGN_OR_RETURN(Values given, ReadMap(text));
  if (given["gpu"].empty()) {
    return absl::InvalidArgumentError(
        "gpu is missing; write gpu: NAME, of the tables or a new one");
  }
  worker::Cluster cluster;
  worker::Gpu& gpu = cluster.gpu;
  gpu.link = {.name = kFileLink, .latency = 2e-6};
  if (const auto found = worker::FindGpu(given["gpu"]); found.ok()) gpu = *found;
  gpu.name = given["gpu"];
  cluster.network = {.name = given.count("network") > 0 ? given["network"] : gpu.network,
                     .latency = 5e-6};
  if (const auto found = worker::FindNetwork(cluster.network.name); found.ok()) {
    cluster.network = *found;
  }
  double node = gpu.node;
  double domain = gpu.domain > gpu.node ? gpu.domain : 0;  // 0: a machine
  const std::map<std::string, NumberKey> keys = {
      {"memory_gib", {&gpu.memory_bytes, kGiB, true}},
      {"bf16_tflops", {&gpu.bf16, 1e12, true}},
      {"fp32_tflops", {&gpu.fp32, 1e12, true}},
      {"fp8_tflops", {&gpu.fp8, 1e12, false}},
      {"memory_gb_per_s", {&gpu.memory_bandwidth, 1e9, true}},
      {"link_gb_per_s", {&gpu.link.bandwidth, 1e9, true}},
      {"node", {&node, 1, true, true}},
      {"domain", {&domain, 1, false, true}},
      {"watts", {&gpu.watts, 1, false}},
      {"network_gb_per_s", {&cluster.network.bandwidth, 1e9, false}},
      {"network_microseconds", {&cluster.network.latency, 1e-6, false}}};
  CONVENE_RETURN_IF_ERROR(SetNumbers(given, keys));
  CONVENE_RETURN_IF_ERROR(CheckGpu(given, keys, cluster));
  if (needs_network) CONVENE_RETURN_IF_ERROR(CheckNetwork(cluster));
  if (given.count("domain") > 0) CONVENE_RETURN_IF_ERROR(CheckDomain(domain, node));
  if (given.count("link_gb_per_s") > 0) gpu.link.name = kFileLink;
  const bool changes_network =
      given.count("network_gb_per_s") > 0 || given.count("network_microseconds") > 0;
  if (changes_network && worker::FindNetwork(cluster.network.name).ok()) {
    cluster.network.name = kFileNetwork;
  }
  gpu.node = static_cast<int>(std::max(1.0, std::min(node, kNodeMax)));
  gpu.domain = static_cast<int>(std::min(std::max<double>(domain, gpu.node), kNodeMax));
  return cluster;
}

absl::StatusOr<worker::Cluster> ReadCluster(const std::string& path, bool needs_network) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<worker::Cluster> cluster = ParseCluster(text, needs_network);
  if (!cluster.ok()) return Annotate(cluster.status(), path);
  return cluster;
}

}  // namespace convene::launcher
