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

namespace convene::worker {

// One rank's slice: column-parallel = the out rows are split, row-parallel = the in columns are
// split.
struct LinearShape {
  int rows = 0;  // tokens
  int out = 0;   // of this rank's slice
  int in = 0;    // of this rank's slice
};

// Where a weight's gradient goes. A step's first microbatch overwrites it, so that gradients need
// not be zeroed first (4 bytes written and 4 read a parameter and step).
struct WeightGradient {
  float* data = nullptr;  // null: this pass makes none
  bool adds = true;       // to `data`; else overwrites it, and never reads it
};

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

// The layers. Where `float8` is on, their products take 8-bit floats of its places
// (float8_linear.h; the weight's codes in place of `weight`), and a tensor that is split over tp,
// or over cp, is measured over these groups: so all of its rows are wanted at once. REQUIRES: then
// the rows are one chunk.

// Column-parallel: all ranks have the same x, whose rows may still be on their way (ChunkedRows):
// each chunk's product begins when the chunk is there. bias: (out), of this rank's slice; null:
// none. Errors: the collective's.
template <typename T>
absl::Status ColumnParallelForward(const LinearShape& shape, const T* x, const T* weight,
                                   const T* bias, const Float8Layer& float8, T* y,
                                   ChunkedRows& rows, Stream& stream);
// dx is overwritten with the sum over ranks (ResidualRows::Sum), which is on its way then: each
// chunk's runs beside the products of the next chunks, and of the weight's gradient, if it is made.
// x may be on its way. Errors: the collective's.
template <typename T>
absl::Status ColumnParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                    const Float8Layer& float8, const T* dy, T* dx,
                                    const WeightGradient& dweight, ChunkedRows& rows,
                                    Stream& stream);

// Row-parallel: y (rows, out) = ResidualRows::Sum of x W^T, which is on its way then, in chunks.
// bias: (out), which the first rank adds to its part of the sum; null: none. Errors: the
// collective's.
template <typename T>
absl::Status RowParallelForward(const LinearShape& shape, const T* x, const T* weight,
                                const T* bias, const Float8Layer& float8, T* y, ChunkedRows& rows,
                                Stream& stream);

// All ranks have the same dy, which may be on its way. dx is overwritten, and may be x. Errors: the
// collective's.
template <typename T>
absl::Status RowParallelBackward(const LinearShape& shape, const T* x, const T* weight,
                                 const Float8Layer& float8, const T* dy, T* dx,
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

// A weight's gradient behind a backward pass of either kind that made none. No communication.
template <typename T>
void LaterWeightGradient(const LinearShape& shape, const T* x, const Float8Layer& float8,
                         const T* dy, const WeightGradient& dweight, Stream& stream);

}  // namespace convene::worker
