// PURE. The command line of `convene bench`, as the launcher and the trainer's program both read
// it: nccl-tests' flags (github.com/NVIDIA/nccl-tests, README.md), and a few more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/flag_reader.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

struct BenchFlags {
  std::vector<std::string> operations;  // OperationNamed's and kCompute; empty: all collectives
  int64_t least_bytes = 8;
  std::optional<int64_t> most_bytes;  // see MostBytes
  double factor = 2;                  // between sizes, unless step_bytes is set
  int64_t step_bytes = 0;
  int iterations = 20;
  int warmup_iterations = 5;
  bool check = true;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  absl::Duration timeout = absl::Minutes(2);  // of one call
  std::string device = "auto";
  bool pairs = false;
  bool json = false;
  std::string save;     // a file's path; "": none
  std::string compare;  // a file that --save wrote; "": none
  // The launcher's alone: how many ranks it starts on each node. "": as `convene run`.
  std::string nproc_per_node;
};

// The word for a rank's own arithmetic (compute.h).
inline constexpr char kCompute[] = "compute";

inline constexpr char kBenchHelp[] =
    "Time collectives between ranks, over NCCL on GPUs and over Gloo on CPUs, in nccl-tests' "
    "columns. "
    "OPERATIONs: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, sendrecv (default: "
    "all of these), and compute: each rank's own products, attention and passes over memory, all "
    "ranks at once. Alone the command starts ranks on this machine; under srun, mpirun or `convene "
    "run` its "
    "processes are the ranks. --pairs measures each pair of nodes and names the slow link.";

void AddFlags(FlagReader* reader, BenchFlags* flags);

// The largest size: as given, else 128 MiB, and 64 MiB with --pairs.
int64_t MostBytes(const BenchFlags& flags);

// Whether operations are timed: --pairs alone times none.
bool TimesOperations(const BenchFlags& flags);

// From least_bytes to MostBytes, both included where the steps meet it. Never empty, at most 4096
// (AddFlags' check).
std::vector<int64_t> BenchSizes(const BenchFlags& flags);

// The words of operations, in the order of the table: `sendrecv` is CollectiveKind::kShift.
std::vector<std::string> OperationNames();
// nullopt: no such operation.
std::optional<CollectiveKind> OperationNamed(const std::string& name);

}  // namespace convene::worker
