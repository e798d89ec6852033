// Times a rank's own arithmetic, by the ops that train: `convene bench compute`.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/clock.h"
#include "worker_runtime/bench/bench_flags.h"
#include "worker_runtime/bench/result.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {

// Products (a layer's three: forward, the input's gradient, the weight's), passes over memory (a
// norm and an activation) and attention (both directions), each in fp32 and bf16 and in several
// sizes. All ranks call it at about the same time, and each op runs on all of them at once, so that
// ranks that share cores or a memory show what each one gets. A row has the slowest rank's mean,
// and is the same on all ranks. Errors: the memory's, the device's, Collective's.
absl::StatusOr<std::vector<ComputeRow>> TimeCompute(const BenchFlags& flags,
                                                    const CommunicatorSet& communicators,
                                                    Device& device, Clock& clock);

}  // namespace convene::worker
