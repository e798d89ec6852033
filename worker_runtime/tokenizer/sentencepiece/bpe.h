// Cuts a normalized text into the pieces of a SentencePiece BPE model.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/byte_trie.h"
#include "worker_runtime/tokenizer/pair_merges.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"
#include "worker_runtime/tokenizer/sentencepiece/unknown_text.h"
#include "worker_runtime/tokenizer/sentencepiece/word_cache.h"

namespace convene::worker {

// sentencepiece/src/bpe_model.cc. PURE, read-only, thread-safe.
//
// SentencePiece merges over the whole text; there are no words. But two neighbouring characters
// that stand next to each other in no piece are never merged into one. There the text is cut, and
// each part, mostly a word, is merged alone and remembered. Nothing crosses a cut, so the order of
// merges on its two sides does not matter, and the pieces are those of the whole text.
class BpeModel {
 public:
  // `user_symbols` has the USER_DEFINED pieces by id, and must outlive the model.
  // InvalidArgument: pieces so long that the tables would take minutes.
  static absl::StatusOr<std::unique_ptr<BpeModel>> Make(const ModelFile& model,
                                                        const ByteTrie* user_symbols);

  // Buffers of Append, for one thread.
  struct Scratch {
    PairMerges::Scratch merges;
    std::vector<int32_t> symbols;
    std::vector<int32_t> word_ids;
    WordCache cache;
  };

  // Appends the ids of `text`, which is valid UTF-8.
  void Append(absl::string_view text, std::vector<int32_t>* ids, Scratch* scratch) const;

 private:
  // A symbol is what the merges work on: a piece by its id, or one of the characters that pieces
  // are made of without being pieces themselves: an "extra" one, numbered on from the pieces. All
  // other characters are one symbol, kOther, that no merge has.
  static constexpr int32_t kOther = -1;

  // Symbols of characters: blocks of 256 code points, block 0 full of kOther.
  class CharacterTable {
   public:
    CharacterTable() : block_of_(0x110000 >> 8), symbols_(256, kOther) {}
    int32_t Find(char32_t character) const {
      return symbols_[block_of_[character >> 8] << 8 | (character & 0xFF)];
    }
    void Set(char32_t character, int32_t symbol);

   private:
    std::vector<uint32_t> block_of_;
    std::vector<int32_t> symbols_;
  };

  explicit BpeModel(const ModelFile& model, const ByteTrie* user_symbols)
      : user_symbols_(user_symbols), unknown_(model) {}

  // bpe_tables.cc
  absl::Status Build(const ModelFile& model);
  std::vector<PairMerges::Merge> FindMerges(const ModelFile& model);
  void ExpandUnused(const ModelFile& model, const std::vector<PairMerges::Merge>& merges);

  // False: no piece has `left` and `right` next to each other. True may be wrong.
  bool MayJoin(char32_t left, char32_t right) const {
    if (left < 128 && right < 128) return ascii_joins_[left << 7 | right];
    return join_filter_[JoinSlot(left, right)];
  }
  static constexpr size_t kJoinSlots = size_t{1} << 20;
  static size_t JoinSlot(char32_t left, char32_t right) {
    const uint64_t key = static_cast<uint64_t>(left) << 32 | right;
    return (key * 0x9E3779B97F4A7C15u) >> 44;
  }
  void SetJoins(absl::string_view piece);

  void AppendWord(absl::string_view word, size_t first, std::vector<int32_t>* ids,
                  Scratch* scratch) const;
  void MergeWord(absl::string_view word, Scratch* scratch) const;
  void AppendSymbol(int32_t symbol, absl::string_view text, size_t first,
                    std::vector<int32_t>* ids) const;

  const ByteTrie* user_symbols_;
  UnknownText unknown_;
  CharacterTable characters_;
  std::unique_ptr<PairMerges> merges_;
  // By symbol, extra ones too.
  struct Symbol {
    uint32_t bytes = 0;
    bool is_known = false;                            // has an id of its own, which is the symbol
    uint32_t expansion_begin = 0, expansion_end = 0;  // UNUSED: the symbols that stand for it
  };
  std::vector<Symbol> symbols_;
  std::vector<int32_t> expansions_;
  std::bitset<128 * 128> ascii_joins_;
  std::bitset<kJoinSlots> join_filter_;
  std::bitset<256> begins_user_symbol_;  // by first byte
};

}  // namespace convene::worker
