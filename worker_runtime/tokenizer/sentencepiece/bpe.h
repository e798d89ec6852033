// Cuts a normalized text into the pieces of a SentencePiece BPE model.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/byte_trie.h"
#include "worker_runtime/tokenizer/character_table.h"
#include "worker_runtime/tokenizer/pair_merges.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"
#include "worker_runtime/tokenizer/sentencepiece/unknown_text.h"
#include "worker_runtime/tokenizer/word_ids.h"

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
    WordIds</*kWords=*/4, /*kIds=*/8, /*kBits=*/15> cache;
  };

  // Appends the ids of `text`, which is valid UTF-8.
  void Append(absl::string_view text, std::vector<int32_t>* ids, Scratch* scratch) const;

 private:
  // A symbol is what the merges work on: a piece by its id, or one of the characters that pieces
  // are made of without being pieces themselves: an "extra" one, numbered on from the pieces. All
  // other characters are one symbol, kOther, that no merge has.
  static constexpr int32_t kOther = -1;
  static constexpr int kJoinBits = 20;

  explicit BpeModel(const ModelFile& model, const ByteTrie* user_symbols)
      : user_symbols_(user_symbols), unknown_(model) {}

  // bpe_tables.cc
  absl::Status Build(const ModelFile& model);
  std::vector<PairMerges::Merge> FindMerges(const ModelFile& model);
  void ExpandUnused(const ModelFile& model, const std::vector<PairMerges::Merge>& merges);

  // False: no piece has `left` and `right` next to each other. True may be wrong.
  bool MayJoin(char32_t left, char32_t right) const {
    return joins_.MayHave(HashOfPair(left, right));
  }
  void SetJoins(absl::string_view piece);

  void AppendWord(absl::string_view word, size_t first, std::vector<int32_t>* ids,
                  Scratch* scratch) const;
  void MergeWord(absl::string_view word, std::vector<int32_t>* ids, Scratch* scratch) const;
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
  PairFilter joins_{kJoinBits};
  std::bitset<256> begins_user_symbol_;  // by first byte
};

}  // namespace convene::worker
