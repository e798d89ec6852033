#include "worker_runtime/model/adapter.h"

#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace convene::worker {

double AdapterConfig::scale() const { return alpha / (rank_stabilized ? std::sqrt(rank) : rank); }

bool IsTarget(const AdapterConfig& config, absl::string_view name) {
  if (!config.is_on()) return false;
  return config.targets.empty() || absl::c_any_of(config.targets, [&](const std::string& target) {
           return name == target || absl::EndsWith(name, absl::StrCat(".", target));
         });
}

std::string AdapterA(absl::string_view name) { return absl::StrCat(name, ".lora_A.weight"); }
std::string AdapterB(absl::string_view name) { return absl::StrCat(name, ".lora_B.weight"); }

}  // namespace convene::worker
