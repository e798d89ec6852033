// The choice of the checkpoint that a run begins with or goes on from, by the files alone: one rank
// makes it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

inline constexpr int64_t kAnyStep = std::numeric_limits<int64_t>::max();

// CheckpointInfo::began_with of a run that these options begin.
std::string BeganWith(const TrainOptions& options);

enum class Origin { kNothing = 0, kOwnDirectory = 1, kNamed = 2 };

struct CheckpointChoice {
  absl::Status status;
  Origin origin = Origin::kNothing;
  int64_t step = 0;
};

// The directory of the chosen one; "" for kNothing.
std::string PathOf(const TrainOptions& options, const CheckpointChoice& choice);

// The checkpoints in options.checkpoint_dir that have been refused so far.
struct Refused {
  int64_t below_step = kAnyStep;     // those of steps from here on
  std::vector<std::string> reasons;  // "path: why", the newest first
};

// The run's own newest checkpoint that opens, in options.checkpoint_dir and of a step below
// refused->below_step; where it has none, what options.resume says. With auto all checkpoints there
// are the run's own. With a directory or `none` those are that name this as their beginning: so the
// same options begin a run and, at each later start, go on with it. Adds to `refused` those that do
// not open.
//
// FailedPrecondition where checkpoint_dir holds a later checkpoint of another run, which this run
// would write over or remove. DataLoss when none of those that may be its own opens; NotFound or
// DataLoss for a named one that is not there or not whole. Other errors: OpenNewest's.
CheckpointChoice ChooseCheckpoint(const TrainOptions& options, Refused* refused);

}  // namespace convene::worker
