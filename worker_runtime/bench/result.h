// PURE. The figures of a bench, as values and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// One operation with one size.
struct BenchRow {
  std::string operation;
  int64_t bytes = 0;             // that were moved: the size asked for, cut to equal shards
  int64_t count = 0;             // elements
  double seconds = 0;            // of a call, the slowest rank's mean
  std::optional<int64_t> wrong;  // elements, over all ranks; nullopt: not checked
  friend bool operator==(const BenchRow&, const BenchRow&) = default;

  double algorithm_bandwidth() const { return static_cast<double>(bytes) / seconds; }
};

// Kinds of ComputeRow.
inline constexpr char kProduct[] = "product";
inline constexpr char kPass[] = "pass";
inline constexpr char kAttention[] = "attention";

// A rank's own arithmetic, of one kind in one size.
struct ComputeRow {
  std::string operation;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;    // tokens; of attention the sequence's
  int64_t width = 0;   // columns; of attention a head's
  double flops = 0;    // 0: a pass
  double bytes = 0;    // each operand once
  double seconds = 0;  // of a call, the slowest rank's mean
  friend bool operator==(const ComputeRow&, const ComputeRow&) = default;
};

// Members exchange messages in both directions at once, each pair by itself.
struct PairTable {
  std::vector<std::string> members;      // nodes, or ranks of the one node
  int64_t bytes = 0;                     // of a message
  std::vector<double> bytes_per_second;  // of one direction; by member * members + other
  std::vector<double> latency_seconds;   // of a small message each way
  friend bool operator==(const PairTable&, const PairTable&) = default;
};

struct BenchResult {
  int ranks = 1;
  std::vector<std::string> hosts;  // by rank
  std::string transport;           // "Gloo", "NCCL"
  std::string device;              // rank 0's
  std::string dtype = "float", op = "sum";
  double memory_bytes = 0;  // of the device; the ranks of a node share a CPU's. 0: an older file
  std::vector<BenchRow> rows;
  std::vector<ComputeRow> compute;
  std::optional<PairTable> pairs;
  friend bool operator==(const BenchResult&, const BenchResult&) = default;
};

// One object, with its newline.
std::string BenchJson(const BenchResult& result);

// Reads the text of BenchJson. InvalidArgument names the place of the first fault.
absl::StatusOr<BenchResult> ParseBenchJson(absl::string_view text);

}  // namespace convene::worker
