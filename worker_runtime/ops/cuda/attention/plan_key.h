// PURE. The shape and pass that a graph of cuDNN is built for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cuda/attention/attention_split.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"

namespace convene::worker::cuda {

enum class AttentionPass { kForward, kBackward };

// How far apart tokens, and rows, lie in QueriesKeysValues; those of values as those of keys.
struct HeadStrides {
  int64_t query_row = 0;
  int64_t query_token = 0;
  int64_t key_row = 0;
  int64_t key_token = 0;

  friend bool operator==(const HeadStrides&, const HeadStrides&) = default;
};

template <typename T>
HeadStrides StridesOf(const QueriesKeysValues<T>& heads) {
  return {heads.queries.row_stride, heads.queries.token_stride, heads.keys.row_stride,
          heads.keys.token_stride};
}

// Of Fused.
inline HeadStrides FusedStrides(const AttentionShape& shape) {
  const int64_t token = shape.qkv_width();
  const int64_t row = shape.sequence_length * token;
  return {row, token, row, token};
}

// Of the gradients of a part as cuDNN makes them: three tensors without gaps.
inline HeadStrides PartGradientStrides(const AttentionShape& shape) {
  const int64_t query = int64_t{shape.heads} * shape.head_size;
  const int64_t key = int64_t{shape.kv_heads} * shape.head_size;
  return {shape.sequence_length * query, query, shape.keys * key, key};
}

struct PlanKey {
  AttentionShape shape;
  HeadStrides strides;
  int document_count = 0;  // Documents::count of packed rows, else 0
  AttentionPass pass = AttentionPass::kForward;
  // The part that the graph computes; the whole shape takes several such calls. None: cuDNN cannot
  // do it.
  std::optional<AttentionSplit> split;

  // The graph's batch: sequences that do not see each other. REQUIRES, as of the next two: `split`.
  int sequences() const { return shape.packed ? document_count : split->batch; }
  int kv_heads() const { return split->kv_heads; }
  int heads() const { return split->kv_heads * (shape.heads / shape.kv_heads); }
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

// `scores_bytes_max`: of one call.
inline PlanKey MakePlanKey(const AttentionShape& shape, const HeadStrides& strides,
                           int document_count, AttentionPass pass,
                           size_t scores_bytes_max = kLargestScoresBytes) {
  PlanKey key = {shape, strides, document_count, pass};
  if (pass == AttentionPass::kForward) key.shape.deterministic = false;  // it always is
  key.split = OneCall(shape);
  if (key.shape.deterministic) {
    key.split = SplitAttention(shape, key.sequences(), scores_bytes_max);
  }
  return key;
}

// "backward pass, batch 4, length 2048, heads 32/8 of 64, deterministic, packed"; of a part
// "length 2048 against 4096 keys".
inline std::string ToText(const PlanKey& key) {
  const AttentionShape& shape = key.shape;
  return absl::StrCat(key.pass == AttentionPass::kForward ? "forward" : "backward", " pass, batch ",
                      shape.batch, ", length ", shape.sequence_length,
                      shape.is_part() ? absl::StrCat(" against ", shape.keys, " keys") : "",
                      ", heads ", shape.heads, "/", shape.kv_heads, " of ", shape.head_size,
                      shape.deterministic ? ", deterministic" : "", shape.packed ? ", packed" : "");
}

}  // namespace convene::worker::cuda
