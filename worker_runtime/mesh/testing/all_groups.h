// PURE. Every group of a layout, where a rank asks for its own alone.
#pragma once

#include <utility>
#include <vector>

#include "worker_runtime/mesh/mesh.h"

namespace convene::worker {

// All groups of these axes, each once, by their lowest ranks.
inline std::vector<std::vector<int>> AllGroups(const Layout& layout, Axes axes) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    std::vector<int> group = GroupOf(layout, axes, rank);
    // Each group is listed once, at its lowest member.
    if (!group.empty() && group.front() == rank) groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace convene::worker
