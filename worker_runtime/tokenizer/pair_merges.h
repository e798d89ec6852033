// Byte pair encoding on ids: the engine of all BPE tokenizers (Sennrich et al. 2016, section 3.2).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker_runtime/tokenizer/character_table.h"

namespace convene::worker {

// The pairs of neighbours that become one token, and their order. Read-only once built;
// thread-safe.
// tiktoken's rule (the pair whose concatenation has the lowest rank) and SentencePiece's (the
// highest score) become this table: each split of a token into two tokens is a pair, with the
// token's place in that order as rank.
class PairMerges {
 public:
  struct Merge {
    int32_t left = 0, right = 0;
    int32_t merged = 0;
    int32_t rank = 0;  // lower ones first; several pairs may share one
  };
  // Of two merges of one pair the last counts, as in Hugging Face's tokenizers.
  // REQUIRES: no number is negative, ranks are below INT32_MAX.
  explicit PairMerges(absl::Span<const Merge> merges);

  // Buffers of Apply, for one thread. They grow with the longest word: 20 bytes a symbol.
  struct Scratch {
    std::vector<int32_t> ranks;
    std::vector<uint32_t> previous, next;
    std::vector<uint64_t> heap;
  };

  // Merges the neighbours of `symbols` in place until no pair is in the table: each time the pair
  // with the lowest rank, and of equal ranks the leftmost. Symbols may be any numbers: one that
  // stands in no merge, such as -1 for an unknown character, stays as it is. n log n in their
  // number; short words take a quick way. REQUIRES: fewer than 2^32 - 1 symbols.
  void Apply(std::vector<int32_t>* symbols, Scratch* scratch) const;

  // The merge of a pair, or null.
  const Merge* Find(int32_t left, int32_t right) const {
    const uint64_t hash = HashOfPair(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
    if (!filter_.MayHave(hash)) return nullptr;
    for (uint64_t slot = hash >> shift_;; slot = (slot + 1) & mask_) {
      const Merge& merge = slots_[slot];
      if (merge.merged < 0) return nullptr;
      if (merge.left == left && merge.right == right) return &merge;
    }
  }

 private:
  void ApplyToShort(std::vector<int32_t>* symbols, Scratch* scratch) const;
  void ApplyToLong(std::vector<int32_t>* symbols, Scratch* scratch) const;

  // An open hash table, at most half full; `merged` is -1 in an empty slot.
  std::vector<Merge> slots_;
  uint64_t mask_ = 0;
  int shift_ = 0;
  // Most pairs that a text asks for are in no merge. The filter tells most of these, and lies in
  // the core's cache, for which the table is too large.
  PairFilter filter_;
};

}  // namespace convene::worker
