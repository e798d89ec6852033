// PURE. How many samples a step takes where the global batch grows at the start of a run: a
// function of the samples consumed, by the rule of Megatron's --rampup-batch-size.
#pragma once

#include <cstdint>

namespace convene::worker {

// The batch begins with `start` samples and has grown by `increment`, in equal shares of the first
// `samples` samples, to `full`. REQUIRES, of both functions: all are above 0, start < full, and
// increment divides full - start; or all but `full` are 0: then every step takes `full`.
struct BatchRamp {
  int64_t full = 1;
  int64_t start = 0;
  int64_t increment = 0;
  int64_t samples = 0;
};

// Samples of the step that begins when `consumed` samples are consumed: at most ramp.full.
int64_t BatchAt(const BatchRamp& ramp, int64_t consumed);

// Samples consumed after so many steps from the first on.
int64_t SamplesAfter(const BatchRamp& ramp, int64_t steps);

}  // namespace convene::worker
