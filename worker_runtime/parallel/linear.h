// Tensor-parallel linear layers (Shoeybi et al. 2019, Megatron-LM, section 3): weights are [out,
// in], y = x W^T. T: float or BFloat16; weight gradients are float, and the product itself adds a
// microbatch's gradient to the earlier ones.
#pragma once

#include "absl/status/status.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/parallel/chunked_rows.h"
#include "worker_runtime/parallel/float8_linear.h"
#include "worker_runtime/parallel/linear_shape.h"
#include "worker_runtime/parallel/low_rank.h"

namespace convene::worker {

// The products alone: y (rows, out) = x (rows, in) W^T; dx (rows, in) = dy W, overwritten; dweight
// (out, in) gets dy^T x, if this pass makes it.
template <typename T>
void LinearForward(const LinearShape& shape, const T* x, const T* weight, T* y, Stream& stream);
template <typename T>
void LinearInputGradient(const LinearShape& shape, const T* weight, const T* dy, T* dx,
                         Stream& stream);
template <typename T>
void LinearWeightGradient(const LinearShape& shape, const T* x, const T* dy,
                          const WeightGradient& dweight, Stream& stream);

// One layer on one rank. Borrowed; a cheap value.
template <typename T>
struct Linear {
  LinearShape shape;
  const T* weight = nullptr;  // (out, in)
  const T* bias = nullptr;    // (out), of this rank's outputs; null: none
  // Where it is on, the products of x and dy with the weight take 8-bit floats of its places
  // (float8_linear.h; the weight's codes in place of `weight`), and a tensor that is split over tp,
  // or over cp, is measured over these groups: so all of its rows are wanted at once. REQUIRES:
  // then the rows are one chunk.
  Float8Layer float8;
  LowRank<T> low_rank;  // what is added to these products
};

// Column-parallel: all ranks have the same x, whose rows may still be on their way (ChunkedRows):
// each chunk's product begins when the chunk is there. Errors: the collective's.
template <typename T>
absl::Status ColumnParallelForward(const Linear<T>& layer, const T* x, T* y, ChunkedRows& rows,
                                   Stream& stream);
// dx is overwritten with the sum over ranks (ResidualRows::Sum), which is on its way then: each
// chunk's runs beside the products of the next chunks, and of the weight's gradient, if it is made.
// x may be on its way. Errors: the collective's.
template <typename T>
absl::Status ColumnParallelBackward(const Linear<T>& layer, const T* x, const T* dy, T* dx,
                                    const WeightGradient& dweight, ChunkedRows& rows,
                                    Stream& stream);

// Row-parallel: y (rows, out) = ResidualRows::Sum of x W^T, which is on its way then, in chunks.
// The first rank adds the bias to its part of the sum. Errors: the collective's.
template <typename T>
absl::Status RowParallelForward(const Linear<T>& layer, const T* x, T* y, ChunkedRows& rows,
                                Stream& stream);

// All ranks have the same dy, which may be on its way. dx is overwritten, and may be x. Errors: the
// collective's.
template <typename T>
absl::Status RowParallelBackward(const Linear<T>& layer, const T* x, const T* dy, T* dx,
                                 const WeightGradient& dweight, ChunkedRows& rows, Stream& stream);

// The gradients of the biases, from the gradient dy of a layer's output. Nothing where dbias has no
// place. Of a row-parallel layer: from the rows of dy that this rank holds (ChunkedRows::Own), so
// that it is treated as the gradient of a norm. workspace: BiasWorkspaceBytes of all rows.
template <typename T>
void ColumnBiasBackward(const LinearShape& shape, const T* dy, const WeightGradient& dbias,
                        const Workspace& workspace, Stream& stream);
template <typename T>
void RowBiasBackward(const LinearShape& shape, const T* dy, const WeightGradient& dbias,
                     const Workspace& workspace, const ChunkedRows& rows, Stream& stream);

// A weight's gradient behind a backward pass of either kind that made none. No communication. An
// adapter's gradients came with that pass.
template <typename T>
void LaterWeightGradient(const Linear<T>& layer, const T* x, const T* dy,
                         const WeightGradient& dweight, Stream& stream);

}  // namespace convene::worker
