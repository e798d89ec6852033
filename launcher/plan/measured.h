// Hardware as `convene bench --save` measured it: --measure FILE.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/bench/result.h"
#include "worker_runtime/planner/collectives.h"
#include "worker_runtime/planner/measured_ops.h"

namespace convene::launcher {

// The figures of one file.
struct Measured {
  std::string path;  // for errors
  worker::MeasuredLinks links;
  std::vector<worker::MeasuredOps> ops;  // by type; empty: it timed no arithmetic
  // With `ops`: the ranks of a node, which ran at once, and the memory of each.
  bool is_cpu = false;
  int ranks_of_node = 0;
  double rank_bytes = 0;
};

// PURE. Links of the ranks of one node: the fastest all-reduce, and the latency of the smallest
// one. Of several nodes: the usual pair (FindSlowSpots), since one slow link is to be mended and
// not planned with. Ops: ComputeRows. InvalidArgument where the result has none of these.
absl::StatusOr<Measured> MeasuredOf(const worker::BenchResult& result);

// Reads the file. Errors: ReadFile's, ParseBenchJson's, MeasuredOf's, with the path.
absl::StatusOr<Measured> ReadMeasured(const std::string& path);

// PURE. Measured figures take the place of the tables', whatever the order of the files. Measured
// arithmetic makes the cluster one of such ranks: machines of as many, on a CPU where they ran on
// one. Between machines of CPUs there is then their usual network, unless another one was measured
// or the user gave one (`network_is_given`). InvalidArgument, with the file's path, where the
// cluster's machines have another number of ranks, since ranks share a machine's cores and memory;
// and where the GPUs do not fill such machines.
absl::Status UseMeasured(const std::vector<Measured>& files, const worker::PlanJob& job,
                         bool network_is_given, worker::Cluster* cluster,
                         worker::Efficiency* efficiency);

}  // namespace convene::launcher
