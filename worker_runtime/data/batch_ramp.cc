#include "worker_runtime/data/batch_ramp.h"

#include <algorithm>

#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

// How often the batch has grown.
int64_t Growth(const BatchRamp& ramp, int64_t consumed) {
  const int64_t increments = (ramp.full - ramp.start) / ramp.increment;
  const auto product = static_cast<__int128>(consumed) * increments;
  return static_cast<int64_t>(product / ramp.samples);
}

}  // namespace

int64_t BatchAt(const BatchRamp& ramp, int64_t consumed) {
  if (consumed >= ramp.samples) return ramp.full;
  return ramp.start + Growth(ramp, consumed) * ramp.increment;
}

int64_t SamplesAfter(const BatchRamp& ramp, int64_t steps) {
  int64_t consumed = 0;
  while (steps > 0 && consumed < ramp.samples) {
    const int64_t batch = BatchAt(ramp, consumed);
    const int64_t increments = (ramp.full - ramp.start) / ramp.increment;
    // The first number of samples with which the batch has grown once more.
    const auto product = static_cast<__int128>(Growth(ramp, consumed) + 1) * ramp.samples;
    const auto next = static_cast<int64_t>((product + increments - 1) / increments);
    const int64_t taken = std::min(steps, CeilDivide(next - consumed, batch));
    consumed += taken * batch;
    steps -= taken;
  }
  return consumed + steps * ramp.full;
}

}  // namespace convene::worker
