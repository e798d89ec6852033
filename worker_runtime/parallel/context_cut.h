// PURE. How the tokens of a row are cut over context-parallel ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/ops/token_runs.h"

namespace convene::worker {

// The way in which the ranks' queries meet all keys of their row (context_attention.h).
enum class ContextMethod {
  kRing,       // keys and values go round (Liu et al. 2023, Ring Attention)
  kAllGather,  // every rank gathers all keys and values (Llama 3, section 3.3.2)
  kUlysses,    // every rank gets all tokens of some heads (Jacobs et al. 2023, DeepSpeed-Ulysses)
};

// "ring", "allgather", "ulysses".
const char* ContextMethodName(ContextMethod method);

// How many of a row's equal chunks each rank has.
int ContextChunks(ContextMethod method);

// The cut of a row of sequence_length tokens on one rank.
struct ContextCut {
  ContextMethod method = ContextMethod::kRing;
  int size = 1;  // ranks
  int rank = 0;
  int sequence_length = 1;

  int local_length() const { return sequence_length / size; }
  // This rank's tokens, and the queries of its attention op.
  std::vector<int32_t> Positions() const;
  std::vector<int32_t> QueryPositions() const;
  // The same tokens as runs; the begins of documents stand as for ContextAttention::Forward.
  TokenRuns Runs() const;
  // Whether attention is between all tokens of some heads: the plain op on every rank.
  bool splits_heads() const { return size == 1 || method == ContextMethod::kUlysses; }
};

// The positions of a rank's tokens in their row; they rise. Ring, all-gather: chunks r and 2n-1-r
// of 2n equal ones, so that causal attention is the same work on every rank (zig-zag). Ulysses: the
// r-th of n equal parts. REQUIRES: the row can be cut so.
std::vector<int32_t> ContextPositions(ContextMethod method, int sequence_length, int size,
                                      int rank);

// The tokens that meet at one step of a ring on `rank`, whose queries meet the keys of `owner`:
// [first_query, first_query + queries) of this rank's tokens, and keys of the owner's. By the
// zig-zag cut all other pairs are hidden, and of these pairs each is seen, but among a rank's own
// tokens (is_in_order) the keys up to the query's own place.
struct RingPart {
  int first_query = 0;
  int queries = 0;
  int first_key = 0;
  int keys = 0;
  bool is_in_order = false;
};
RingPart RingPartOf(const ContextCut& cut, int owner);

// From `rows` whole rows of sequence_length to the tokens at these positions of each.
void CutRows(const std::vector<int32_t>& positions, int sequence_length, int64_t rows,
             const int32_t* whole, int32_t* cut);

// The length of a row is a multiple of it.
int64_t ContextMultiple(ContextMethod method, int size);

// Whether a tensor-parallel rank's query heads and key-value heads come out even over so many
// ranks, as Ulysses wants. InvalidArgument names the sizes up to `size_max` that would do, with
// rows of this length.
absl::Status ValidateContextHeads(ContextMethod method, int size, int size_max,
                                  int64_t sequence_length, int heads, int kv_heads);

}  // namespace convene::worker
