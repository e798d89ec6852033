// PURE. A ramp of the global batch (data/batch_ramp.h): its options, and its steps on a layout.
#pragma once

#include <map>

#include "absl/status/status.h"
#include "worker_runtime/data/batch_ramp.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

BatchRamp RampOf(const TrainOptions& options);

// The cut of a step of `batch` samples. Micro batches are as large as in a step of the full batch:
// a smaller batch has fewer of them.
BatchCut CutOfBatch(const TrainOptions& options, const Layout& layout, int64_t batch);

// InvalidArgument: no ramp as BatchRamp wants it; one with CUDA graphs or with a schedule's file,
// which are for one number of micro batches.
absl::Status ValidateRamp(const TrainOptions& options);

// By their number of micro batches, the schedules of the ramp's steps that have fewer than a step
// of the full batch. REQUIRES: ValidateOptions said OK.
std::map<int, Schedule> RampSchedules(const TrainOptions& options, const Layout& layout);

}  // namespace convene::worker
