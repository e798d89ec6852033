// Links as `convene bench --save` measured them: --measure FILE.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker_runtime/bench/result.h"
#include "worker_runtime/planner/collectives.h"

namespace convene::launcher {

// PURE. Of the ranks of one node: the fastest all-reduce, and the latency of the smallest one. Of
// several nodes: the usual pair (FindSlowSpots), since one slow link is to be mended and not
// planned with. InvalidArgument where the result has neither.
absl::StatusOr<worker::MeasuredLinks> LinksOf(const worker::BenchResult& result);

// Reads the file. Errors: ReadFile's, ParseBenchJson's, LinksOf's, with the path.
absl::StatusOr<worker::MeasuredLinks> ReadMeasuredLinks(const std::string& path);

}  // namespace convene::launcher
