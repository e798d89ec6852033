// PURE. Attention in several calls of one graph, each over some sequences or some heads, where one
// call would keep more scores than there is room for.
#pragma once

#include <cstddef>
#include <optional>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker::cuda {

// The part that one call takes; calls follow each other over the batch, and within it over the
// heads.
struct AttentionSplit {
  int batch = 0;     // sequences of rows that are not packed; of packed rows all, always
  int kv_heads = 0;  // with the query heads that share them

  friend bool operator==(const AttentionSplit&, const AttentionSplit&) = default;
};

inline AttentionSplit OneCall(const AttentionShape& shape) { return {shape.batch, shape.kv_heads}; }

// sequences x heads x queries x keys of 2 bytes, both counts rounded up to their tiles.
// `sequences`: the batch, of packed rows Documents::count.
inline size_t CudnnScoresBytes(const AttentionShape& shape, int sequences) {
  constexpr size_t kTile = 128;
  return size_t{2} * sequences * shape.heads * RoundUp(shape.sequence_length, kTile) *
         RoundUp(shape.key_count(), kTile);
}

// The fewest calls, all alike, of which none keeps more than `limit_bytes` of scores; whole
// sequences before parts of their heads. None when one key-value head of one sequence keeps more,
// or when the statistics of no part would start where cuDNN can read them, at 16 bytes.
inline std::optional<AttentionSplit> SplitAttention(const AttentionShape& shape, int sequences,
                                                    size_t limit_bytes) {
  constexpr size_t kStatistics = 4;  // floats in 16 bytes
  const size_t group = static_cast<size_t>(shape.heads / shape.kv_heads);
  const size_t scores_of_head = CudnnScoresBytes(shape, 1) / shape.heads;
  const size_t length = static_cast<size_t>(shape.sequence_length);
  const auto fits = [&](int call_sequences, int kv_heads) {
    return call_sequences * kv_heads * group * scores_of_head <= limit_bytes;
  };
  if (fits(sequences, shape.kv_heads)) return OneCall(shape);
  // Sequences of packed rows are one list.
  for (int batch = shape.packed ? 0 : shape.batch - 1; batch > 0; --batch) {
    const bool is_aligned = batch * length * shape.heads % kStatistics == 0;
    if (shape.batch % batch == 0 && is_aligned && fits(batch, shape.kv_heads)) {
      return AttentionSplit{batch, shape.kv_heads};
    }
  }
  const int batch = shape.packed ? shape.batch : 1;
  if (!shape.packed && shape.batch > 1 && length * shape.heads % kStatistics != 0) return {};
  for (int kv_heads = shape.kv_heads - 1; kv_heads > 0; --kv_heads) {
    // Of packed rows the statistics of a token's heads lie side by side.
    const bool is_aligned = kv_heads * group * (shape.packed ? 1 : length) % kStatistics == 0;
    if (shape.kv_heads % kv_heads == 0 && is_aligned &&
        fits(shape.packed ? sequences : 1, kv_heads)) {
      return AttentionSplit{batch, kv_heads};
    }
  }
  return {};
}

}  // namespace convene::worker::cuda
