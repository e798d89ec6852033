// RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x^2) + epsilon) * (weight + offset), over
// the last axis. offset: 0, or 1 where weights count from 1 (Gemma).
//
// T: float or BFloat16; arithmetic in float.
#pragma once

#include <cstddef>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// With the residual addition in the same pass: sum = x + delta (rounded to T), y = RMSNorm(sum).
// All four (rows, columns); sum may be x or delta; y overlaps none. delta null: y = RMSNorm(x), sum
// is left alone, and y may be x. weight: (columns); inverse_rms: (rows), kept for the backward
// pass.
template <typename T>
void RmsNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                    float offset, float epsilon, T* sum, T* y, float* inverse_rms, Stream& stream);

// y again, from what the forward pass kept: the same bits.
template <typename T>
void RmsNormAgain(int rows, int columns, const T* x, const T* weight, float offset,
                  const float* inverse_rms, T* y, Stream& stream);

// Scratch of RmsNormBackward.
size_t RmsNormWorkspaceBytes(int rows, int columns, DeviceKind device);

// dx: (rows, columns), added to when `add_to_dx` (the residual stream's gradient is already there),
// else overwritten; dweight: (columns), added to when `add_to_dweight`, else overwritten; null:
// none is made. An output that is overwritten is never read. No rows: nothing is touched. The same
// bits for the same input.
template <typename T>
void RmsNormBackward(int rows, int columns, const T* x, const T* weight, float offset,
                     const float* inverse_rms, const T* dy, bool add_to_dx, T* dx,
                     bool add_to_dweight, float* dweight, const Workspace& workspace,
                     Stream& stream);

}  // namespace convene::worker
