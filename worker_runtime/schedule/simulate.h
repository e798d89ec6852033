// PURE. Runs a schedule on paper: whether it can be done, and when each compute starts.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

// Of one chunk and one microbatch, in a unit of the caller's choice; all but `message` above 0.
struct ComputeTimes {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double message = 0;  // between two ranks, from the end of one compute to the start of the next
};

double TimeOf(ComputeKind kind, const ComputeTimes& times);

// Where the passes of one chunk and microbatch stand in the list of the chunk's rank; -1: nowhere.
struct Passes {
  int forward = -1;
  int input = -1;   // kBackward or kBackwardInput
  int weight = -1;  // kBackward or kBackwardWeight

  // The one that takes part in messages in the direction of a compute of that kind.
  int Along(ComputeKind kind) const { return kind == ComputeKind::kForward ? forward : input; }
};

struct Timeline {
  std::vector<std::vector<Passes>> passes;  // [chunk][microbatch]
  std::vector<std::vector<double>> start;   // [rank][position in the rank's list]
};

// Every rank starts at time 0 and computes its list in order, each as soon as its input is there.
// Messages never wait for each other or for memory; lower.h shows that memory makes no deadlock.
//
// InvalidArgument, with the first compute that cannot be done ("rank 1, action 3 (2B0): ...",
// counted from 0), for: a chunk or a microbatch that does not exist; a chunk of another rank; a
// compute that stands twice, or before the one of the same rank that it needs; ranks that wait for
// each other for ever; and one that is missing. A schedule without any backward pass is complete
// (validation); else every forward needs its kBackward, or both halves.
// REQUIRES: schedule.placement names ranks of the schedule.
absl::StatusOr<Timeline> Simulate(const Schedule& schedule, const ComputeTimes& times = {});

}  // namespace convene::worker
