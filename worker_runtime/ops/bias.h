// The bias of a linear layer. T: float or BFloat16; sums in float.
#pragma once

#include <cstddef>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// y: (rows, columns) += bias: (columns), in each row.
template <typename T>
void AddBias(int rows, int columns, const T* bias, T* y, Stream& stream);

// Scratch of BiasBackward.
size_t BiasWorkspaceBytes(int rows, int columns, DeviceKind device);

// dbias: (columns), the sum of dy's rows: added to where `adds`, else overwritten. No rows: nothing
// is touched. The same bits for the same input.
template <typename T>
void BiasBackward(int rows, int columns, const T* dy, bool adds, float* dbias,
                  const Workspace& workspace, Stream& stream);

}  // namespace convene::worker
