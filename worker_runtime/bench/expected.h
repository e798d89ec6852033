// PURE. The elements that a collective is given, and those that it has to give back.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/dtype.h"

namespace convene::worker {

// One call of a collective, as all of its ranks see it. Whole numbers below 256, so that bf16 has
// them exactly; for sums in bf16 zeros and ones: those are exact up to 512 ranks, in whatever order
// a library adds.
class ExpectedResult {
 public:
  // REQUIRES: `kind` is one of bench_flags.h's; `count`, the elements of each rank's buffer, is
  // divisible by `ranks` where the collective cuts it.
  ExpectedResult(CollectiveKind kind, ReduceOp op, DType dtype, int root, int ranks, int64_t count);

  // Element `index` of the buffer that `rank` brings.
  float Given(int rank, int64_t index) const {
    return static_cast<float>((int64_t{31} * rank + index) % period_);
  }
  // The part [begin, end) of the buffer of `rank` that the collective fills.
  struct Part {
    int64_t begin = 0, end = 0;
  };
  Part FilledPart(int rank) const;
  // Element `index` of it. REQUIRES: `index` lies in FilledPart(rank).
  float Right(int rank, int64_t index) const;

 private:
  const CollectiveKind kind_;
  const int root_;
  const int ranks_;
  const int64_t count_;
  const int64_t period_;
  std::vector<float> reduced_;  // by index modulo the period
};

}  // namespace convene::worker
