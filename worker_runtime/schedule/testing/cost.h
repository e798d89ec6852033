// PURE. The time and the memory that a schedule takes on paper.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "worker_runtime/schedule/plan.h"
#include "worker_runtime/schedule/simulate.h"

namespace convene::worker {

struct Cost {
  double makespan = 0;
  std::vector<double> busy;    // per rank: the sum of its computes' times
  double bubble_fraction = 0;  // share of ranks x makespan in which a rank computes nothing
  // Per rank: the most microbatches at one time that have gone forward through a chunk and whose
  // backward pass through it has not ended, summed over its chunks. 1 where nothing goes backward.
  std::vector<int> saved_peak;
};

// `timeline`: Simulate's, with the same times.
inline Cost CostOf(const Schedule& schedule, const Timeline& timeline,
                   const ComputeTimes& times = {}) {
  const auto goes_back = [](const Compute& compute) {
    return compute.kind != ComputeKind::kForward;
  };
  bool trains = false;
  for (const std::vector<Compute>& list : schedule.ranks) {
    trains = trains || std::any_of(list.begin(), list.end(), goes_back);
  }
  Cost cost;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    double& busy = cost.busy.emplace_back(0);
    int& peak = cost.saved_peak.emplace_back(0);
    int saved = 0;
    for (size_t position = 0; position < schedule.ranks[rank].size(); ++position) {
      const Compute& compute = schedule.ranks[rank][position];
      const double time = TimeOf(compute.kind, times);
      busy += time;
      cost.makespan = std::max(cost.makespan, timeline.start[rank][position] + time);
      if (!goes_back(compute)) peak = std::max(peak, ++saved);
      const bool ends = goes_back(compute) && compute.kind != ComputeKind::kBackwardInput;
      if (ends || !trains) --saved;
    }
  }
  const double busy = std::accumulate(cost.busy.begin(), cost.busy.end(), 0.0);
  cost.bubble_fraction = 1 - busy / (cost.makespan * static_cast<double>(cost.busy.size()));
  return cost;
}

}  // namespace convene::worker
