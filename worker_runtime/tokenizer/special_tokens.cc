#include "worker_runtime/tokenizer/special_tokens.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {
namespace {

uint64_t Edge(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<Token> tokens) : tokens_(std::move(tokens)) {
  id_at_node_.push_back(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const Token& token = tokens_[i];
    index_of_id_[token.id] = i;
    if (token.text.empty()) continue;
    id_of_text_[token.text] = token.id;
    begins_[static_cast<unsigned char>(token.text[0])] = true;
    uint32_t node = 0;
    for (const char byte : token.text) {
      const auto [child, is_new] =
          children_.emplace(Edge(node, byte), static_cast<uint32_t>(id_at_node_.size()));
      if (is_new) id_at_node_.push_back(-1);
      node = child->second;
    }
    id_at_node_[node] = token.id;
  }
}

std::optional<SpecialTokens::Match> SpecialTokens::Find(absl::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const auto child = children_.find(Edge(node, text[at]));
      if (child == children_.end()) break;
      node = child->second;
      if (id_at_node_[node] >= 0) longest = Match{begin, at + 1, id_at_node_[node]};
    }
    if (longest.has_value()) return longest;
  }
  return std::nullopt;
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
