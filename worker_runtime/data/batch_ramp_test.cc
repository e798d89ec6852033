#include "worker_runtime/data/batch_ramp.h"

#include <catch2/catch.hpp>
#include <vector>

namespace convene::worker {
namespace {

TEST_CASE("without a ramp every step takes the full batch") {
  CHECK(BatchAt({.full = 7}, 0) == 7);
  CHECK(SamplesAfter({.full = 7}, 5) == 35);
}

// Megatron-core's RampupBatchsizeNumMicroBatchesCalculator: rampup_batch_size 4 4 60 to 16.
TEST_CASE("the batch grows by the samples consumed, as Megatron's does") {
  const BatchRamp ramp = {.full = 16, .start = 4, .increment = 4, .samples = 60};
  std::vector<int64_t> batches;
  for (int64_t consumed = 0; batches.size() < 13; consumed += batches.back()) {
    batches.push_back(BatchAt(ramp, consumed));
  }
  CHECK(batches == std::vector<int64_t>{4, 4, 4, 4, 4, 8, 8, 8, 12, 12, 16, 16, 16});
  CHECK(BatchAt(ramp, 19) == 4);
  CHECK(BatchAt(ramp, 20) == 8);
  CHECK(BatchAt(ramp, 59) == 12);
  CHECK(BatchAt(ramp, 60) == 16);
}

TEST_CASE("samples after so many steps are the sum of their batches") {
  for (const BatchRamp& ramp :
       {BatchRamp{16, 4, 4, 60}, BatchRamp{9, 1, 1, 7}, BatchRamp{9, 1, 1, 1000},
        BatchRamp{10, 1, 3, 100}, BatchRamp{64, 63, 1, 1}, BatchRamp{5, 1, 4, 33}}) {
    int64_t consumed = 0;
    for (int64_t step = 0; step < 500; ++step) {
      CHECK(SamplesAfter(ramp, step) == consumed);
      const int64_t batch = BatchAt(ramp, consumed);
      CHECK((batch - ramp.start) % ramp.increment == 0);
      CHECK(batch <= ramp.full);
      consumed += batch;
    }
    CHECK(BatchAt(ramp, consumed) == ramp.full);
  }
}

}  // namespace
}  // namespace convene::worker
