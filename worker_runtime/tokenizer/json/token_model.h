// The "model" of a tokenizer.json: turns a piece of text into ids.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/json/vocabulary.h"

namespace convene::worker {

// Not thread-safe; each thread has its own. Must not outlive its model.
class PieceEncoder {
 public:
  virtual ~PieceEncoder() = default;
  // Appends the ids of `piece`, which is UTF-8 and not empty.
  virtual void Encode(absl::string_view piece, std::vector<int32_t>* ids) = 0;
};

// Read-only and thread-safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // As the file has it: "BPE", "Unigram".
  virtual std::string type() const = 0;
  virtual const Vocabulary& vocabulary() const = 0;
  virtual std::unique_ptr<PieceEncoder> NewEncoder() const = 0;

  // Makes the model take pieces as bytes where it was given them in GPT-2's spelling, which is
  // quicker; false where it cannot. To be called before NewEncoder.
  virtual bool TakeBytes() { return false; }
};

// The contents of special added tokens.
using SpecialContents = absl::flat_hash_set<std::string>;

// The tokens that stand for single bytes: "<0x0A>".
class ByteFallback {
 public:
  explicit ByteFallback(const Vocabulary& vocabulary);
  // Appends the tokens of the bytes of `text`. False, and nothing appended: one has no token.
  bool Append(absl::string_view text, std::vector<int32_t>* ids) const;

 private:
  std::array<int32_t, 256> ids_;  // -1: none
};

// `node`: the file's "model". A token of more than one character whose text is in `specials` is
// never a piece's id: the letters "</s>" in a document are not the end of a sentence. The original
// makes them that with encode_special_tokens, where the vocabulary has the text.
// InvalidArgument, Unimplemented.
absl::StatusOr<std::unique_ptr<TokenModel>> ReadModel(const JsonNode& node,
                                                      const SpecialContents& specials);

// The model "BPE": byte pair encoding with a list of merges, on characters or on bytes in GPT-2's
// spelling (tokenizers/src/models/bpe/model.rs).
// Unimplemented: "dropout" that is not 0. InvalidArgument: merges of tokens that the vocabulary
// does not have, and the like. An unknown character is dropped where "unk_token" is absent or not
// in the vocabulary.
absl::StatusOr<std::unique_ptr<TokenModel>> ReadBpeModel(const JsonNode& node,
                                                         const SpecialContents& specials);

// The model "Unigram" (tokenizers/src/models/unigram/model.rs). Unimplemented: no "unk_id".
absl::StatusOr<std::unique_ptr<TokenModel>> ReadUnigramModel(const JsonNode& node,
                                                             const SpecialContents& specials);

}  // namespace convene::worker
