// Tensor-parallel linear layers (Shoeybi et al. 2019, Megatron-LM, section 3): weights are [out,
// in], y = x W^T.
#pragma once

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// One rank's slice: column-parallel = the out rows are split, row-parallel = the in columns are
// split.
struct LinearShape {
  int rows = 0;  // tokens
  int out = 0;   // of this rank's slice
  int in = 0;    // of this rank's slice
};

// y (rows, out) = x (rows, in) W^T. x is the same on all ranks; no communication.
void ColumnParallelForward(const LinearShape& shape, const float* x, const float* weight, float* y,
                           Stream& stream);

// dx (rows, in) is overwritten with the sum over the group; dweight is added to. Errors: the
// collective's.
absl::Status ColumnParallelBackward(const LinearShape& shape, const float* x, const float* weight,
                                    const float* dy, float* dx, float* dweight, Collective& tp,
                                    Stream& stream);

// y (rows, out) = the sum over the group of x (rows, in) W^T.
absl::Status RowParallelForward(const LinearShape& shape, const float* x, const float* weight,
                                float* y, Collective& tp, Stream& stream);

// dy is the same on all ranks; dx (rows, in) is overwritten; dweight is added to. No communication.
void RowParallelBackward(const LinearShape& shape, const float* x, const float* weight,
                         const float* dy, float* dx, float* dweight, Stream& stream);

}  // namespace convene::worker
