// LayerNorm (Ba et al. 2016): y = (x - mean) / sqrt(variance + epsilon) * weight + bias, over the
// last axis. T: float or BFloat16; arithmetic in float.
#pragma once

#include <cstddef>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// Mean, and 1 / sqrt(variance + epsilon).
inline constexpr int kLayerNormStatistics = 2;

// sum = x + delta, y = LayerNorm(sum): the contract of RmsNormForward. statistics: (rows,
// kLayerNormStatistics), kept for the backward pass.
template <typename T>
void LayerNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                      const T* bias, float epsilon, T* sum, T* y, float* statistics,
                      Stream& stream);

// y again, from what the forward pass kept: the same bits.
template <typename T>
void LayerNormAgain(int rows, int columns, const T* x, const T* weight, const T* bias,
                    const float* statistics, T* y, Stream& stream);

// Scratch of LayerNormBackward.
size_t LayerNormWorkspaceBytes(int rows, int columns, DeviceKind device);

// The contract of RmsNormBackward; `adds`: to dweight and dbias, both (columns), or both null.
template <typename T>
void LayerNormBackward(int rows, int columns, const T* x, const T* weight, const float* statistics,
                       const T* dy, bool add_to_dx, T* dx, bool adds, float* dweight, float* dbias,
                       const Workspace& workspace, Stream& stream);

}  // namespace convene::worker
