#include "worker_runtime/schedule/plan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

int Neighbour(const Schedule& schedule, const Compute& compute, int step) {
  if (compute.kind == ComputeKind::kBackwardWeight) return -1;
  const int chunk = compute.chunk + (compute.kind == ComputeKind::kForward ? step : -step);
  return chunk < static_cast<int>(schedule.placement.size()) ? chunk : -1;
}

}  // namespace

std::string ToString(const Compute& compute) {
  constexpr absl::string_view kLetters = "FBIW";
  return absl::StrCat(compute.chunk, kLetters.substr(static_cast<size_t>(compute.kind), 1),
                      compute.microbatch);
}

int SourceOf(const Schedule& schedule, const Compute& compute) {
  return Neighbour(schedule, compute, -1);
}

int ReaderOf(const Schedule& schedule, const Compute& compute) {
  return Neighbour(schedule, compute, 1);
}

std::vector<std::pair<int, int>> LinksOf(const ChunkPlacement& placement) {
  std::set<std::pair<int, int>> links;
  for (size_t chunk = 1; chunk < placement.size(); ++chunk) {
    const auto link = std::minmax(placement[chunk - 1], placement[chunk]);
    if (link.first != link.second) links.insert(link);
  }
  return {links.begin(), links.end()};
}

}  // namespace convene::worker
