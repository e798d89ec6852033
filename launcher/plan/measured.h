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
  bool is_cpu = false;                   // ranks of one node, on its CPU
  // With `ops`: the ranks of a node, which ran at once, and the memory of each.
  int ranks_of_node = 0;
  double rank_bytes = 0;
};

// PURE. Links of the ranks of one node: the fastest all-reduce, and the latency of the smallest
// one. Of several nodes: the usual pair (FindSlowSpots), since one slow link is to be mended and
// not planned with. Ops: ComputeRows. InvalidArgument where the result has none of these.
absl::StatusOr<Measured> MeasuredOf(const worker::BenchResult& result);

// Reads the file. Errors: ReadFile's, ParseBenchJson's, MeasuredOf's, with the path.
absl::StatusOr<Measured> ReadMeasured(const std::string& path);

// The user named these, by a flag or in a file.
struct GivenHardware {
  bool gpu = false;
  bool network = false;
};

// PURE. Measured figures take the place of the tables', whatever the order of the files. Figures of
// ranks on a CPU make the cluster one of such ranks. Between machines of CPUs there is then their
// usual network, unless another one was measured or given. InvalidArgument, with the file's path,
// where another kind of GPU was given; where the cluster's machines have another number of ranks
// than timed their arithmetic at once, since ranks share a machine's cores and memory; and where
// the GPUs do not fill such machines.
absl::Status UseMeasured(const std::vector<Measured>& files, const worker::PlanJob& job,
                         const GivenHardware& given, worker::Cluster* cluster,
                         worker::Efficiency* efficiency);

}  // namespace convene::launcher
