// PURE. The reasons of a plan, in words. All of them are read off the result of one search, so they
// cannot disagree with its ranking.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/planner/search.h"

namespace convene::worker {

// "dp64 (4 copies of 16 shards) x tp4 x pp4, ZeRO-1, micro batch 2, interleaved with 10 chunks,
// recompute selective".
std::string StrategyText(const Strategy& strategy);
// "none", "selective", "full", or the parts: --recompute's words.
std::string RecomputeText(const Recompute& recompute);
// The inverse. InvalidArgument for other words.
absl::StatusOr<Recompute> ParseRecompute(absl::string_view text);
// "1f1b" or "interleaved".
const char* ScheduleName(const Strategy& strategy);

// Why this layout serves the job, and what keeps it from being faster: a sentence each.
std::vector<std::string> Strengths(const PlanJob& job, const Cluster& cluster,
                                   const Estimate& estimate);
std::vector<std::string> Limits(const PlanJob& job, const Cluster& cluster,
                                const Estimate& estimate);

// The walk up the ladder of Rung: for each rung whether it fits, its best layout, and how it stands
// to the first of plans.ranked. A line each.
std::vector<std::string> Explain(const PlanJob& job, const Cluster& cluster, const Plans& plans);

// Changes that help where no layout fits. REQUIRES: plans.ranked is empty.
std::vector<std::string> WaysToFit(const PlanJob& job, const Cluster& cluster, const Plans& plans);

}  // namespace convene::worker
