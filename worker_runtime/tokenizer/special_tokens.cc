#include "worker_runtime/tokenizer/special_tokens.h"

#include <utility>

namespace convene::worker {
namespace {

ByteTrie TrieOf(const std::vector<SpecialTokens::Token>& tokens) {
  std::vector<ByteTrie::Entry> entries;
  for (const SpecialTokens::Token& token : tokens) entries.push_back({token.text, token.id});
  return ByteTrie(std::move(entries));
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<Token> tokens)
    : tokens_(std::move(tokens)), trie_(TrieOf(tokens_)) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    index_of_id_[tokens_[i].id] = i;
    if (!tokens_[i].text.empty()) id_of_text_[tokens_[i].text] = tokens_[i].id;
  }
}

std::optional<SpecialTokens::Match> SpecialTokens::Find(absl::string_view text, size_t from) const {
  const ByteTrie::Found found = trie_.FindFirst(text, from);
  if (found.match.length == 0) return std::nullopt;
  return Match{found.begin, found.begin + found.match.length, found.match.value};
}

std::optional<int32_t> SpecialTokens::IdOf(absl::string_view text) const {
  const auto found = id_of_text_.find(text);
  if (found == id_of_text_.end()) return std::nullopt;
  return found->second;
}

absl::string_view SpecialTokens::TextOf(int32_t id) const {
  const auto found = index_of_id_.find(id);
  return found == index_of_id_.end() ? absl::string_view() : tokens_[found->second].text;
}

}  // namespace convene::worker
