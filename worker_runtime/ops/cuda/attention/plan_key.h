// PURE. What a graph of cuDNN is built for.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "worker_runtime/ops/attention.h"

namespace convene::worker::cuda {

enum class AttentionPass { kForward, kBackward };

struct PlanKey {
  AttentionShape shape;
  int document_count = 0;  // Documents::count of packed rows, else 0
  AttentionPass pass = AttentionPass::kForward;

  // The graph's batch: sequences that do not see each other.
  int sequences() const { return shape.packed ? document_count : shape.batch; }
  friend bool operator==(const PlanKey&, const PlanKey&) = default;
};

inline PlanKey MakePlanKey(const AttentionShape& shape, int document_count, AttentionPass pass) {
  PlanKey key = {shape, document_count, pass};
  if (pass == AttentionPass::kForward) key.shape.deterministic = false;  // it always is
  return key;
}

// "backward pass, batch 4, length 2048, heads 32/8 of 64, deterministic, packed".
inline std::string ToText(const PlanKey& key) {
  const AttentionShape& shape = key.shape;
  return absl::StrCat(key.pass == AttentionPass::kForward ? "forward" : "backward", " pass, batch ",
                      shape.batch, ", length ", shape.sequence_length, ", heads ", shape.heads, "/",
                      shape.kv_heads, " of ", shape.head_size,
                      shape.deterministic ? ", deterministic" : "", shape.packed ? ", packed" : "");
}

}  // namespace convene::worker::cuda
