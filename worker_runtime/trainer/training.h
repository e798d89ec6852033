// One worker's training run, from options to the last checkpoint.
#pragma once

#include "absl/status/statusor.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/session/stop_token.h"
#include "worker_runtime/trainer/setup.h"
#include "worker_runtime/trainer/training_loop.h"

namespace convene::worker {

// Every rank calls it with the same options, those of LoadOptions. `opened`: OpenGpuEarly's, or
// none. A rank that the layout does not need is a spare: it waits without training and ends with
// the others. Rank 0 prints progress and writes the metrics. A stop that `stop` asks for is heard
// from the first step on; a spare passes it on to rank 0.
//
// Errors: those of DecideLayout, before anything is connected; FailedPrecondition when some ranks
// have a GPU and some have none; those of the data, the checkpoint and the engine; Aborted when a
// peer is gone (the agent starts this worker again); DeadlineExceeded when a collective waited too
// long; DataLoss when too many steps in a row, or too many at the end of the run, were skipped
// because their gradients are no numbers (SkippedSteps); the file system's when too many
// checkpoints in a row, or the last one, could not be saved, or metrics were lost for too long.
absl::StatusOr<TrainingEnd> RunTraining(const TrainOptions& asked, const Contract& contract,
                                        StopToken& stop, OpenedGpu opened = {});

}  // namespace convene::worker
