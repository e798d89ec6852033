// Causal grouped-query attention that never holds the T x T matrix (online softmax: Dao et al.
// 2022, FlashAttention). T: float or BFloat16; softmax in float.
#pragma once

#include <cstddef>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/documents.h"

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
  // The backward pass gives the same bits for the same input on every device; slower on a GPU. (On
  // the CPU it always does.)
  bool deterministic = false;
  // Rows may hold several documents: documents.begin is given. Else it is null.
  bool packed = false;

  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// Scratch that either call may overwrite.
template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape, DeviceKind device);

// A query sees the keys of its own document up to its own position.
//
// out: (batch, sequence_length, heads * head_size). log_sum_exp is kept for the backward pass:
// (batch, heads, sequence_length), but (batch, sequence_length, heads) of packed rows on a GPU
// (documents lie anywhere, so cuDNN wants all heads of a token side by side).
template <typename T>
void AttentionForward(const AttentionShape& shape, const Documents& documents, const T* qkv, T* out,
                      float* log_sum_exp, const Workspace& workspace, Stream& stream);

// dqkv has qkv's shape and is overwritten.
template <typename T>
void AttentionBackward(const AttentionShape& shape, const Documents& documents, const T* qkv,
                       const T* out, const float* log_sum_exp, const T* dout, T* dqkv,
                       const Workspace& workspace, Stream& stream);

}  // namespace convene::worker
