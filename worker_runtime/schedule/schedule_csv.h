// PURE. Pipeline schedules in the file format of torch.distributed.pipelining.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

// PyTorch's format "compute_only": one row a rank, the actions separated by commas, each as
// ToString writes it: "0F0,0F1,,0B0,0B1". Empty cells are waiting and mean nothing. The rows say
// which rank holds which chunk. `text` is a whole file, with either kind of line ends.
//
// A cell "(0F5;7B0)OVERLAP_F_B" stands for the actions in it, one after the other.
//
// InvalidArgument, with the row and the column (counted from 1) and what to write instead: a cell
// that is none of these, such as a message of PyTorch's format "compute_comms"; a row without an
// action; fewer actions than the chunks and microbatches need; and, with rank and action counted
// from 0, Simulate's errors.
absl::StatusOr<Schedule> ReadCsv(absl::string_view text);

}  // namespace convene::worker
