// Byte pair encoding on ids: the engine of all BPE tokenizers (Sennrich et al. 2016, section 3.2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

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

  // Buffers of Apply, for one thread. They grow with the longest word: 24 bytes a symbol.
  struct Scratch {
    std::vector<int32_t> ranks, results;
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
    for (uint64_t slot = Hash(left, right) >> shift_;; slot = (slot + 1) & mask_) {
      const Merge& merge = slots_[slot];
      if (merge.merged < 0) return nullptr;
      if (merge.left == left && merge.right == right) return &merge;
    }
  }

 private:
  // Fibonacci hashing (Knuth, volume 3, section 6.4): the upper bits of the product are the slot.
  static uint64_t Hash(int32_t left, int32_t right) {
    const uint64_t key =
        static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
    return (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
  }

  void ApplyToShort(std::vector<int32_t>* symbols, Scratch* scratch) const;
  void ApplyToLong(std::vector<int32_t>* symbols, Scratch* scratch) const;

  // An open hash table, at most half full; `merged` is -1 in an empty slot.
  std::vector<Merge> slots_;
  uint64_t mask_ = 0;
  int shift_ = 0;
};

}  // namespace convene::worker
