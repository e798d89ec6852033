// The "added_tokens" of a tokenizer.json: texts that become one token before the model sees them
// (tokenizers/src/tokenizer/added_vocabulary.rs).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/byte_trie.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/json/text_normalizer.h"
#include "worker_runtime/tokenizer/json/token_model.h"
#include "worker_runtime/tokenizer/json/vocabulary.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"

namespace convene::worker {

// Read-only and thread-safe.
class AddedTokens {
 public:
  // `node`: the file's "added_tokens". A token that the vocabulary does not have gets the next free
  // id, whatever the file says, as in the original. Of tokens with the same normalised content a
  // special one counts, else the first (in the original, chance decides). `config`: the tokens that
  // transformers adds behind the file's: so it has new ones, with the next free ids too, and other
  // flags, but `normalized` of a special one stays the file's. InvalidArgument; Unimplemented: a
  // token whose normalised content is empty.
  static absl::StatusOr<AddedTokens> Read(const std::optional<JsonNode>& node,
                                          const std::vector<AddedToken>& config,
                                          const Vocabulary& vocabulary,
                                          const TextNormalizer& normalizer);

  // The contents of the special ones in `node` and `config`. InvalidArgument.
  static absl::StatusOr<SpecialContents> ReadSpecials(const std::optional<JsonNode>& node,
                                                      const std::vector<AddedToken>& config);

  struct Cut {
    size_t begin = 0, end = 0;  // bytes of the text
    int32_t id = -1;            // -1: text between tokens
  };

  // Gives `take` the cuts that make up `text`, UTF-8, in order, by the tokens with this
  // `normalized`. Without `with_specials`, special tokens are text. Linear in the text's length
  // times the longest token's.
  void ForEachCut(absl::string_view text, bool normalized, bool with_specials,
                  absl::FunctionRef<void(const Cut&)> take) const;

  // Null for an id that no added token has.
  const AddedToken* Find(int32_t id) const;
  std::optional<int32_t> Find(absl::string_view content) const;
  // The text that the decoder gets for the token: its normalised content, if it is looked for so.
  // REQUIRES: an added token.
  const std::string& DecodedText(int32_t id) const { return decoded_.at(id); }
  // Whether a token of this text is left out of decoded text.
  bool IsSpecial(absl::string_view content) const { return specials_.contains(content); }
  // The tokens of the config that are not as the file has them, as they count.
  const std::vector<AddedToken>& changed() const { return changed_; }
  // One more than the largest id.
  int32_t id_count() const { return id_count_; }

 private:
  int32_t NextId(const Vocabulary& vocabulary) const;
  // The token as it counts, until the next one is added. Null: it is there already.
  const AddedToken* Add(const AddedToken& token, const Vocabulary& vocabulary);
  absl::Status MakeFinders(const TextNormalizer& normalizer);

  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<int32_t, AddedToken> tokens_;  // the last one given for each id
  absl::flat_hash_map<int32_t, std::string> decoded_;
  absl::flat_hash_map<std::string, bool> specials_;  // `normalized` of the first with the content
  // In the order in which equal normalised contents win.
  std::vector<AddedToken> special_order_, other_order_;
  std::vector<AddedToken> changed_;
  ByteTrie raw_{{}}, normalized_{{}};
  int32_t id_count_ = 0;
};

}  // namespace convene::worker
