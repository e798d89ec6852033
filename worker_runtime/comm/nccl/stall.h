// PURE. Finds the ranks that keep the others waiting, from the operation that each started last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// The operations of one order: the operations of a group ("dp"), or the messages from one rank of a
// group to another ("pp 0>1"), which the sender and the receiver count alike.
struct NcclProgress {
  std::string order;
  uint64_t started = 0;    // sequence number of the last one queued
  uint64_t completed = 0;  // of the last one known to be complete, as of the watchdog's last look
  // Of the last one queued. Messages are "message" at both ends.
  std::string operation;
  size_t size_bytes = 0;
  std::string dtype = DTypeName(DType::kFloat32);

  friend bool operator==(const NcclProgress&, const NcclProgress&) = default;
};

// All orders of one rank, one a line.
std::string SerializeProgress(const std::vector<NcclProgress>& orders);
// InvalidArgument when it is not what SerializeProgress wrote.
absl::StatusOr<std::vector<NcclProgress>> ParseProgress(absl::string_view text);

// `stuck` is the operation that did not complete (its number is `stuck.started`) and `members` the
// global ranks that take part in it; `ranks` has each rank's progress, by global rank, without
// ranks that told nothing. Names the ranks that keep the others waiting:
//   "rank 2 never started it (its last there: all_reduce #16); rank 3 left no word"
//   "rank 1 started broadcast (64 B fp32) instead"; its size does not count where ranks have sizes
//     of their own (all_to_all_v)
//   "all 4 ranks started it"
std::string ExplainStall(const NcclProgress& stuck, const std::vector<int>& members,
                         const std::map<int, std::vector<NcclProgress>>& ranks);

}  // namespace convene::worker
