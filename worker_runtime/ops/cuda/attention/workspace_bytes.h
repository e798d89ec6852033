// PURE: how much scratch attention asks for, known without a GPU.
#pragma once

#include <algorithm>
#include <cstddef>

#include "worker_runtime/ops/attention.h"

namespace convene::worker::cuda {

// cuDNN's deterministic backward pass keeps scores of T x T (see below); beyond this our own kernel
// computes it.
inline constexpr size_t kLargestScoresBytes = size_t{1} << 30;

// Where cuDNN's scratch starts: at a multiple of this.
inline constexpr size_t kCudnnAlignment = 256;

// batch x heads x T x T of 2 bytes, T rounded up to its tiles.
inline size_t CudnnScoresBytes(const AttentionShape& shape) {
  constexpr size_t kTile = 128;
  const size_t length = (shape.sequence_length + kTile - 1) / kTile * kTile;
  return size_t{2} * shape.batch * shape.heads * length * length;
}

// What cuDNN needs for either pass, by what cudnn-frontend 1.32 puts there itself
// (node/scaled_dot_product_flash_attention.h, CompositeSDPABackwardNode): the row sums of dout *
// out; with fewer key-value than query heads dK and dV of every query head; and either dQ in float
// or, up to its default limit of 256 MiB and always when deterministic (on Hopper with cuDNN before
// 9.25), the gradients of all scores. What the kernels take beyond it they do not tell before they
// are built: a margin. Where it is too small, AttentionPlans helps itself.
inline size_t CudnnWorkspaceBytes(const AttentionShape& shape) {
  constexpr size_t kScoresLimit = size_t{256} << 20;
  constexpr size_t kMargin = size_t{8} << 20;
  const size_t rows = size_t{1} * shape.batch * shape.heads * shape.sequence_length;
  const size_t head_bytes = rows * shape.head_size * sizeof(float);
  size_t bytes = rows * sizeof(float) + kMargin + kCudnnAlignment;
  if (shape.kv_heads < shape.heads) bytes += 2 * head_bytes;
  const size_t scores = CudnnScoresBytes(shape);
  const size_t scores_limit = shape.deterministic ? kLargestScoresBytes : kScoresLimit;
  return bytes + (scores <= scores_limit ? std::max(scores, head_bytes) : head_bytes);
}

// Of our own backward pass: a float for each row.
inline size_t FlashWorkspaceBytes(const AttentionShape& shape) {
  return sizeof(float) * shape.batch * shape.heads * shape.sequence_length;
}

}  // namespace convene::worker::cuda
