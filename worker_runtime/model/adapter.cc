#include "worker_runtime/model/adapter.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

constexpr absl::string_view kExperts = ".experts.";

}  // namespace

double AdapterConfig::scale() const { return alpha / (rank_stabilized ? std::sqrt(rank) : rank); }

std::string OfAnyExpert(absl::string_view name) {
  const size_t begin = name.find(kExperts);
  if (begin == name.npos) return std::string(name);
  const absl::string_view behind = name.substr(begin + kExperts.size());
  return absl::StrCat(name.substr(0, begin), kExperts, "*",
                      behind.substr(std::min(behind.find('.'), behind.size())));
}

bool IsTarget(const AdapterConfig& config, absl::string_view name) {
  if (!config.is_on()) return false;
  if (config.targets.empty()) return !absl::StrContains(name, kExperts);
  const std::string matrix = OfAnyExpert(name);
  return absl::c_any_of(config.targets, [&](absl::string_view target) {
    return absl::EndsWith(matrix, target) &&
           (matrix.size() == target.size() || matrix[matrix.size() - target.size() - 1] == '.');
  });
}

std::string AdapterA(absl::string_view name) { return absl::StrCat(name, ".lora_A.weight"); }
std::string AdapterB(absl::string_view name) { return absl::StrCat(name, ".lora_B.weight"); }

}  // namespace convene::worker
