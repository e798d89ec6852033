// PURE: how much scratch attention asks for, known without a GPU.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cuda/attention/attention_split.h"

namespace convene::worker::cuda {

// cuDNN's deterministic backward pass keeps scores of T x T (see below): in one call so many at the
// most (SplitAttention).
inline constexpr size_t kLargestScoresBytes = size_t{1} << 30;

// Where cuDNN's scratch starts: at a multiple of this.
inline constexpr size_t kCudnnAlignment = 256;

// For the kernels' own needs, beyond the arrays below: cuDNN 9.19 takes up to 17 KiB.
inline constexpr size_t kCudnnMargin = size_t{1} << 20;

// The same for packed rows, however many documents they hold. With set_max_total_seq_len the arrays
// are as long as the tokens, but are laid out as their tensors are: a token of dQ in float takes a
// whole row of qkv; a token of dK and dV for every query head takes as many rows as query heads
// share a key-value head (cudnn-frontend, ragged_workspace_size). Scores are kept, up to the limit,
// where they fit for the fewest documents that there can be.
inline size_t CudnnPackedWorkspaceBytes(const AttentionShape& shape) {
  const size_t tokens = size_t{1} * shape.batch * shape.sequence_length;
  const size_t row_bytes = tokens * shape.qkv_width() * sizeof(float);
  const size_t group = static_cast<size_t>(shape.heads / shape.kv_heads);
  size_t bytes = tokens * shape.heads * sizeof(float) + kCudnnMargin + kCudnnAlignment;
  if (group > 1) bytes += 2 * group * row_bytes;
  const int fewest = static_cast<int>(std::bit_ceil(static_cast<unsigned int>(shape.batch)));
  const bool keeps_scores =
      shape.deterministic && SplitAttention(shape, fewest, kLargestScoresBytes).has_value();
  if (!keeps_scores) return bytes + row_bytes;
  const int most = static_cast<int>(std::bit_ceil(tokens));
  return bytes + std::max(std::min(kLargestScoresBytes, CudnnScoresBytes(shape, most)), row_bytes);
}

// The scratch that cuDNN needs for either pass, by the arrays that cudnn-frontend 1.32 and the
// kernels of cuDNN 9.19 put there: the row sums of dout * out; with fewer key-value than query
// heads dK and dV of every query head, in bfloat16; and dQ in float or, when deterministic, the
// gradients of all scores. Kernels for GPUs before Hopper take as much as dQ once more. Where it is
// too small, AttentionPlans takes more itself.
inline size_t CudnnWorkspaceBytes(const AttentionShape& shape) {
  if (shape.packed) return CudnnPackedWorkspaceBytes(shape);
  const size_t rows = size_t{1} * shape.batch * shape.heads * shape.sequence_length;
  const size_t head_bytes = rows * shape.head_size * sizeof(float);
  size_t bytes = rows * sizeof(float) + kCudnnMargin + kCudnnAlignment;
  if (shape.kv_heads < shape.heads) {
    bytes +=
        size_t{1} * shape.batch * shape.heads * shape.key_count() * shape.head_size * sizeof(float);
  }
  const auto split = SplitAttention(shape, shape.batch, kLargestScoresBytes);
  if (!shape.deterministic || !split.has_value()) return bytes + 2 * head_bytes;
  const size_t scores = CudnnScoresBytes(shape, shape.batch) * split->batch / shape.batch *
                        split->kv_heads / shape.kv_heads;
  return bytes + std::max(scores, head_bytes);
}

// The gradients of a part in bfloat16, which are then added to sums in float: of queries, keys and
// values, one behind the other.
inline size_t PartGradientBytes(const AttentionShape& shape) {
  const size_t heads =
      size_t{1} * shape.sequence_length * shape.heads + size_t{2} * shape.keys * shape.kv_heads;
  const size_t bytes = heads * shape.batch * shape.head_size * sizeof(BFloat16);
  return (bytes + kCudnnAlignment - 1) / kCudnnAlignment * kCudnnAlignment;
}

// The scratch of our own backward pass: a float for each row.
inline size_t FlashWorkspaceBytes(const AttentionShape& shape) {
  return sizeof(float) * shape.batch * shape.heads * shape.sequence_length;
}

}  // namespace convene::worker::cuda
