#include "worker_runtime/trainer/same_data.h"

#include <cstdint>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"

namespace convene::worker {

// Without this check nodes with different texts would train, tensor-parallel ranks even on
// different tokens, and nobody would notice.
absl::Status CheckSameData(const RunData& data, Collective& host, Stream& stream) {
  int64_t tokens = data.training.token_count();
  uint64_t hash = data.training.content_hash();
  for (const ValidationSet& set : data.validation_sets) {
    tokens += set.dataset.token_count();
    hash = hash * 0x9e3779b97f4a7c15 + set.dataset.content_hash();
  }
  // The hash goes in halves, because a double holds 53 bits.
  const double mine[] = {static_cast<double>(tokens), static_cast<double>(hash >> 32),
                         static_cast<double>(hash & 0xffffffff)};
  double most_and_least[] = {mine[0], mine[1], mine[2], -mine[0], -mine[1], -mine[2]};
  CONVENE_RETURN_IF_ERROR(host.AllReduce(absl::MakeSpan(most_and_least), ReduceOp::kMax, stream));
  bool same = true;
  for (int i = 0; i < 3; ++i) same &= most_and_least[i] == -most_and_least[i + 3];
  if (same) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "data here is %s%s; over all ranks it has %.0f to %.0f tokens and is not everywhere the "
      "same: --data and --validation-data must name the same texts on every node",
      data.training.Identity(), data.validation_sets.empty() ? "" : ", and the validation sets",
      -most_and_least[3], most_and_least[0]));
}

}  // namespace convene::worker
