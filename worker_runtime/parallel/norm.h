// The norm of the residual stream's rows on one rank, chunk by chunk, between the collectives
// before and behind it.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/kinds.h"
#include "worker_runtime/parallel/chunked_rows.h"
#include "worker_runtime/parallel/linear.h"

namespace convene::worker {

// Floats of a row that the forward pass keeps for the backward pass.
int NormStatistics(NormKind kind);

// Scratch of NormBackward.
size_t NormWorkspaceBytes(NormKind kind, int own_rows, int columns, DeviceKind device);

// The weights and what the forward pass keeps of one norm.
template <typename T>
struct Norm {
  NormKind kind = NormKind::kRms;
  int columns = 0;
  const T* weight = nullptr;  // (columns)
  const T* bias = nullptr;    // (columns), of a LayerNorm
  float epsilon = 0;
  float* statistics = nullptr;  // (own rows, NormStatistics)
};

// sum = x + delta, y = the norm of sum. x, sum: (own rows, columns); delta, y: (rows, columns),
// where delta may be on its way, and null: see RmsNormForward. y's rows of all ranks are on their
// way then. Errors: the collective's.
template <typename T>
absl::Status NormForward(const Norm<T>& norm, const T* x, const T* delta, T* sum, T* y,
                         ChunkedRows& rows, Stream& stream);

// A norm behind a part: delta, (rows, columns), which may be on its way, becomes the norm of itself
// in the own rows; kept, (own rows, columns), becomes what they were, as `sum` of NormBackward.
// Errors: the collective's.
template <typename T>
absl::Status NormDelta(const Norm<T>& norm, T* kept, T* delta, ChunkedRows& rows, Device& device,
                       Stream& stream);

// y again, from sum.
template <typename T>
absl::Status NormAgain(const Norm<T>& norm, const T* sum, T* y, ChunkedRows& rows, Stream& stream);

// dx gets (`add_to_dx`: is added) the gradient of sum. dy, which may be on its way, and dx:
// (rows, columns), of which the own rows count.
template <typename T>
absl::Status NormBackward(const Norm<T>& norm, const T* sum, const T* dy, bool add_to_dx, T* dx,
                          const WeightGradient& dweight, const WeightGradient& dbias,
                          const Workspace& workspace, ChunkedRows& rows, Stream& stream);

}  // namespace convene::worker
