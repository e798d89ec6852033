// Tensor-parallel linear layers (Shoeybi et al. 2019, Megatron-LM, section 3): weights are [out,
// in], y = x W^T. T: float or BFloat16; weight gradients are float, accumulated by the product
// itself (beta 1), so that microbatches need no separate addition.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// One rank's slice: column-parallel = the out rows are split, row-parallel = the in columns are
// split.
struct LinearShape {
  int rows = 0;  // tokens
  int out = 0;   // of this rank's slice
  int in = 0;    // of this rank's slice
};

// The products alone: y (rows, out) = x (rows, in) W^T; dx (rows, in) = dy W, overwritten; dweight
// (out, in) += dy^T x.
template <typename T>
void LinearForward(const LinearShape& shape, const T* x, const T* weight, T* y, Stream& stream);
template <typename T>
void LinearInputGradient(const LinearShape& shape, const T* weight, const T* dy, T* dx,
                         Stream& stream);
template <typename T>
void LinearWeightGradient(const LinearShape& shape, const T* x, const T* dy, float* dweight,
                          Stream& stream);

// Column-parallel: x is the same on all ranks; the forward pass is LinearForward, without
// communication. dx is overwritten with the sum over the group; dweight is added to. Errors: the
// collective's.
template <typename T>
absl::Status ColumnParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                    const T* dy, T* dx, float* dweight, Collective& tp,
                                    Stream& stream);

// Row-parallel: y (rows, out) = the sum over the group of x W^T.
template <typename T>
absl::Status RowParallelForward(const LinearShape& shape, const T* x, const T* weight, T* y,
                                Collective& tp, Stream& stream);

// dy is the same on all ranks; dx is overwritten; dweight is added to. No communication.
template <typename T>
void RowParallelBackward(const LinearShape& shape, const T* x, const T* weight, const T* dy, T* dx,
                         float* dweight, Stream& stream);

}  // namespace convene::worker
