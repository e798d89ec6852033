// The bias of a router that no loss teaches (Wang et al. 2024, "Auxiliary-loss-free load balancing
// strategy for mixture-of-experts"; DeepSeek-V3, section 2.1.2): after each step the bias of an
// expert that more tokens than the mean chose falls by a fixed rate, and that of the others rises.
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/router.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

// imbalance: (experts): experts * the rows that chose it - all choices, from RouterStatistics'
// counts; `adds`: to what it holds, else overwritten. Whole numbers, exact up to 2^24, so that sums
// over microbatches and ranks have no order.
void RouterImbalance(int sequences, const RouterShape& shape, const float* statistics, bool adds,
                     float* imbalance, Stream& stream);

// bias -= rate * sign(imbalance), unless the step is skipped; the imbalance becomes 0, so that an
// update rule that takes it for a gradient changes nothing. count: of both; control: in the
// device's memory.
void RouterBiasStep(int64_t count, float rate, const StepControl* control, float* imbalance,
                    float* bias, Stream& stream);

}  // namespace convene::worker
