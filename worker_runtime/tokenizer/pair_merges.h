// Byte pair encoding on ids: the engine of all BPE tokenizers (Sennrich et al. 2016, section 3.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace convene::worker {

// Which two neighbours become which token, and in which order. Read-only once built; thread-safe.
// tiktoken's rule (the pair whose concatenation has the lowest rank) and SentencePiece's (the
// highest score) become this table: each split of a token into two tokens is a pair, with the
// token's place in that order as rank.
class PairMerges {
 public:
  struct Merge {
    int32_t left = 0, right = 0;
    int32_t merged = 0;
    int32_t rank = 0;  // lower ones first
  };
  // Of two merges of one pair the last counts, as in Hugging Face's tokenizers.
  explicit PairMerges(absl::Span<const Merge> merges);

  // Buffers of Apply, for one thread.
  struct Scratch;

  // Merges the neighbours of `symbols` in place until no pair is in the table: each time the pair
  // with the lowest rank, and of equal ranks the leftmost. n log n in their number; short words
  // take a quick way.
  void Apply(std::vector<int32_t>* symbols, Scratch* scratch) const;

  // The merge of a pair, or null.
  const Merge* Find(int32_t left, int32_t right) const;
};

}  // namespace convene::worker
