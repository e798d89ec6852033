// Texts such as "<|eot_id|>" that are one token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/byte_trie.h"

namespace convene::worker {

// Read-only and thread-safe.
class SpecialTokens {
 public:
  struct Token {
    std::string text;
    int32_t id = 0;
    friend bool operator==(const Token&, const Token&) = default;
  };
  // Of two tokens with the same text the last counts. Empty texts are never found.
  explicit SpecialTokens(std::vector<Token> tokens);

  struct Match {
    size_t begin = 0, end = 0;  // bytes
    int32_t id = 0;
  };
  // The first special token in `text` that begins at `from` or later; of those that begin at one
  // place the longest. Its time is as ByteTrie::FindFirst has it.
  std::optional<Match> Find(absl::string_view text, size_t from) const;

  std::optional<int32_t> IdOf(absl::string_view text) const;
  // Empty for an id that is none of them.
  absl::string_view TextOf(int32_t id) const;

  const std::vector<Token>& tokens() const { return tokens_; }

 private:
  std::vector<Token> tokens_;
  absl::flat_hash_map<std::string, int32_t> id_of_text_;
  absl::flat_hash_map<int32_t, size_t> index_of_id_;
  ByteTrie trie_;
};

}  // namespace convene::worker
