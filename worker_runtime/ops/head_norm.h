// RMSNorm (ops/rms_norm.h) of each head of the queries or of the keys, in place, with one weight
// for all heads (Henry et al. 2020, "Query-Key Normalization", as Qwen 3 has it). T: float or
// BFloat16; arithmetic in float.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// `heads` heads of `size` elements side by side, from the begin of each of `rows` rows on.
struct HeadRows {
  int rows = 0;
  int heads = 0;
  int size = 0;

  int64_t count() const { return int64_t{rows} * heads * size; }
};

// x: rows `stride` elements apart. kept: (rows, heads, size), what x was; inverse_rms: (rows,
// heads). Both are for the backward pass. weight: (size), offset: of RMSNorm.
template <typename T>
void HeadNormForward(const HeadRows& shape, int stride, const T* weight, float offset,
                     float epsilon, T* x, T* kept, float* inverse_rms, Stream& stream);

// Scratch of HeadNormBackward.
size_t HeadNormWorkspaceBytes(const HeadRows& shape, DeviceKind device);

// dx: rows `stride` elements apart; the gradient of the heads before the norm takes the place of
// the gradient behind it. dweight: (size), added to where `adds`, else overwritten; null: none
// is made. The same bits for the same input.
template <typename T>
void HeadNormBackward(const HeadRows& shape, int stride, const T* kept, const T* weight,
                      float offset, const float* inverse_rms, T* dx, bool adds, float* dweight,
                      const Workspace& workspace, Stream& stream);

}  // namespace convene::worker
