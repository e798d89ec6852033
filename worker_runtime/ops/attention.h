// Causal grouped-query attention that never holds the T x T matrix (online softmax: Dao et al.
// 2022, FlashAttention).
#pragma once

#include <cstddef>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// qkv: (batch, sequence_length, (heads + 2 * kv_heads) * head_size): per token all query heads,
// then all key heads, then all value heads. Query head h uses key-value head h / (heads /
// kv_heads). Scores are scaled by 1/sqrt(head_size).
struct AttentionShape {
  int batch = 0;
  int sequence_length = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
};

// Floats of scratch that either call may overwrite.
size_t AttentionWorkspace(const AttentionShape& shape);

// out: (batch, sequence_length, heads * head_size); log_sum_exp: (batch, heads, sequence_length),
// kept for the backward pass.
void AttentionForward(const AttentionShape& shape, const float* qkv, float* out, float* log_sum_exp,
                      float* workspace, Stream& stream);

// dqkv has qkv's shape and is overwritten.
void AttentionBackward(const AttentionShape& shape, const float* qkv, const float* out,
                       const float* log_sum_exp, const float* dout, float* dqkv, float* workspace,
                       Stream& stream);

}  // namespace convene::worker
