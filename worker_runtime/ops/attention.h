// Causal grouped-query attention that never holds the T x T matrix (online softmax: Dao et al.
// 2022, FlashAttention). T: float or BFloat16; softmax in float. The queries may be some tokens of
// a row and the keys others: a part of a longer row's attention (context parallelism), or one new
// token against the keys of all before it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/documents.h"

namespace convene::worker {

// The keys that the queries of a part see without a window, where their positions come to something
// simple. The positions are given all the same. Only rows that are not packed have another value
// than kByPosition.
enum class KeysSeen {
  kByPosition,
  kInOrder,  // there are as many keys as queries, and query i sees the keys 0 to i
  kAll,      // each query sees each key
};

// Query head h uses key-value head h / (heads / kv_heads). Scores are scaled by scale().
struct AttentionShape {
  int batch = 0;            // rows
  int sequence_length = 0;  // queries of a row
  int heads = 0;
  int kv_heads = 0;
  int head_size = 0;
  // The backward pass gives the same bits for the same input on every device; slower on a GPU. (On
  // the CPU it always does.)
  bool deterministic = false;
  // Rows may hold several documents: documents.begin is given. Else it is null.
  bool packed = false;
  // Keys of a row. 0: the queries' own tokens, a whole row from its first on, side by side in one
  // tensor (Fused); a GPU is fastest then.
  int keys = 0;
  KeysSeen keys_seen = KeysSeen::kByPosition;  // of a part; a GPU is faster with the other two
  // A query sees the key of its own position and those of the window - 1 positions before it
  // (Beltagy et al. 2020, Longformer, section 3.1; as Mistral counts them). 0: all before it.
  int window = 0;
  float score_scale = 0;  // 0: 1 / sqrt(head_size)
  // Scores become cap tanh(score / cap) before the softmax (Gemma 2, 2024, section 2); 0: they
  // stay. A GPU has no fast kernel for it.
  float score_cap = 0;

  bool is_part() const { return keys > 0; }
  float scale() const {
    return score_scale > 0 ? score_scale : 1.0f / std::sqrt(static_cast<float>(head_size));
  }
  int key_count() const { return is_part() ? keys : sequence_length; }
  int qkv_width() const { return (heads + 2 * kv_heads) * head_size; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

// Where heads stand, counted in elements: those of token t of row b lie side by side from `data` +
// b * row_stride + t * token_stride on. On a GPU `data` is at a multiple of two elements, and the
// strides are even.
template <typename T>
struct TokenHeads {
  T* data = nullptr;
  int64_t row_stride = 0;
  int64_t token_stride = 0;

  friend bool operator==(const TokenHeads&, const TokenHeads&) = default;
};

template <typename T>
struct QueriesKeysValues {
  TokenHeads<T> queries;  // sequence_length tokens a row, `heads` heads
  TokenHeads<T> keys;     // key_count() tokens a row, `kv_heads` heads, as are the values
  TokenHeads<T> values;

  friend bool operator==(const QueriesKeysValues&, const QueriesKeysValues&) = default;
};

// qkv: (batch, sequence_length, qkv_width): per token all query heads, then all key heads, then all
// value heads. T: may be const.
template <typename T>
QueriesKeysValues<T> Fused(const AttentionShape& shape, T* qkv) {
  const int64_t token = shape.qkv_width();
  const int64_t row = shape.sequence_length * token;
  T* const keys = qkv + int64_t{shape.heads} * shape.head_size;
  T* const values = keys + int64_t{shape.kv_heads} * shape.head_size;
  return {{qkv, row, token}, {keys, row, token}, {values, row, token}};
}

// A part's queries among all queries of a row: `all` of them, of which the part's begin at `first`.
struct QueryRange {
  int first = 0;
  int all = 0;
};

// The places of the queries' (sequence_length) and the keys' (key_count()) tokens in the whole row,
// in the device's memory, the same for every row of the batch; each list rises. Null: 0, 1, 2, ...
// REQUIRES: both null where the shape is no part.
struct AttentionPositions {
  const int32_t* queries = nullptr;
  const int32_t* keys = nullptr;
};

// Scratch that any of the calls may overwrite.
template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape, DeviceKind device);

// A query sees the keys of its own document up to its own position, and of these the window's:
// document begin <= key's position <= query's position.
//
// out: (batch, sequence_length, heads * head_size). log_sum_exp is kept for the backward pass:
// (batch, heads, sequence_length), but (batch, sequence_length, heads) of packed rows on a GPU that
// are no part (documents lie anywhere, so cuDNN wants all heads of a token side by side). A query
// that sees no key: out is 0, log_sum_exp -infinity.
template <typename T>
void AttentionForward(const AttentionShape& shape, const Documents& documents,
                      const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                      T* out, float* log_sum_exp, const Workspace& workspace, Stream& stream);

// Merges a part's result into that of the parts before it, over disjoint keys of the same queries:
// the weights of each part are rescaled to the softmax over the keys of both (Liu et al. 2023, Ring
// Attention; the formula is Dao et al.'s for blocks). part_out, part_log_sum_exp: as
// AttentionForward gives them of a part. out: (batch, range.all, heads * head_size), in float so
// that it is rounded once, by the caller. log_sum_exp: (batch, heads, range.all). is_first: both
// are overwritten, else read; at other queries neither is touched. No overlap.
template <typename T>
void AttentionMerge(const AttentionShape& shape, const T* part_out, const float* part_log_sum_exp,
                    const QueryRange& range, bool is_first, float* out, float* log_sum_exp,
                    Stream& stream);

// The gradients are overwritten, or added to where `adds`, which only floats are: the sum over
// parts. out, log_sum_exp: of the queries' attention to all keys, so that the parts of a backward
// pass do not depend on each other. The gradient of a key that no query sees is 0, as is that of a
// query that sees no key. Gradient: T, or float.
template <typename T, typename Gradient>
void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                       const AttentionPositions& positions, const QueriesKeysValues<const T>& qkv,
                       const T* out, const float* log_sum_exp, const T* dout, bool adds,
                       const QueriesKeysValues<Gradient>& gradients, const Workspace& workspace,
                       Stream& stream);

}  // namespace convene::worker
