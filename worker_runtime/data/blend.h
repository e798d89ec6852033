// PURE. Several sources mixed in fixed shares: which source stands at a position of the order, as a
// function of the position alone. No table and no state, so that a run resumes anywhere on any
// layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace convene::worker {

constexpr size_t kBlendSourcesMax = 65536;

// Thread-safe.
class Blend {
 public:
  struct Place {
    int source = 0;
    int64_t index = 0;  // how many earlier positions the source has: its own position
  };

  // Shares in proportion to `weights`. The sources are the leaves of Huffman's tree of the weights.
  // In each inner node with the weights a and b below it the left side has round(n a / (a + b)) of
  // the first n positions, the right side the others. Each rounding errs by 1/2 at most, an error
  // above counts less below, and at least half as much two nodes below, because Huffman's tree
  // merges the lightest: so of the first n positions a source has its share to within 2, for every
  // n. (Megatron's build_blending_indices keeps to the shares as closely, with a table that it
  // makes from the first position on.) Checkpoints rely on the order: it never changes. REQUIRES:
  // 1 to kBlendSourcesMax weights, each above 0, their sum below 2^62.
  explicit Blend(absl::Span<const int64_t> weights);

  // O(depth). With counts as weights, the first sum-of-weights positions have each source exactly
  // its count. REQUIRES: position >= 0.
  Place At(int64_t position) const;

 private:
  // Below 0: leaf ~child. Else an index in nodes_.
  struct Node {
    int left = 0, right = 0;
    int64_t left_weight = 0, weight = 0;
  };
  std::vector<Node> nodes_;
  int root_ = 0;
};

// Shares in any unit as weights for Blend, exact to 2^-40 of their sum. REQUIRES: each is finite
// and above 0.
std::vector<int64_t> WeightsOfShares(absl::Span<const double> shares);

struct WeightedPath {
  std::string path;
  std::optional<double> weight;
};
// "a.bin:0.7,b-*.jsonl:0.3": paths or patterns with their shares; a comma within braces is the
// pattern's own. A colon that no number follows belongs to the path. InvalidArgument: an empty
// path, a share that is not above 0, more than 65536 paths.
absl::StatusOr<std::vector<WeightedPath>> ParseBlend(absl::string_view text);

}  // namespace convene::worker
