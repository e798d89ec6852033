#include "worker_runtime/tokenizer/json/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

absl::StatusOr<AddedToken> ReadToken(const JsonNode& node) {
  AddedToken token;
  CONVENE_ASSIGN_OR_RETURN(token.content, node.GetString("content"));
  CONVENE_ASSIGN_OR_RETURN(token.single_word, node.GetBool("single_word", false));
  CONVENE_ASSIGN_OR_RETURN(token.lstrip, node.GetBool("lstrip", false));
  CONVENE_ASSIGN_OR_RETURN(token.rstrip, node.GetBool("rstrip", false));
  CONVENE_ASSIGN_OR_RETURN(token.normalized, node.GetBool("normalized", true));
  CONVENE_ASSIGN_OR_RETURN(token.special, node.GetBool("special", false));
  return token;
}

absl::StatusOr<std::vector<AddedToken>> ReadTokens(const std::optional<JsonNode>& node) {
  std::vector<AddedToken> tokens;
  if (!node.has_value()) return tokens;
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node->Elements());
  for (const JsonNode& element : elements) {
    CONVENE_ASSIGN_OR_RETURN(AddedToken token, ReadToken(element));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

bool StandsAlone(absl::string_view text, size_t begin, size_t end) {
  const auto is_word = [text](size_t at) { return IsWordCharacter(CharacterAt(text, at).code); };
  return (begin == 0 || !is_word(PreviousCharacter(text, begin))) &&
         (end == text.size() || !is_word(end));
}

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Read(const std::optional<JsonNode>& node,
                                              const std::vector<AddedToken>& config,
                                              const Vocabulary& vocabulary,
                                              const TextNormalizer& normalizer) {
  AddedTokens added;
  CONVENE_ASSIGN_OR_RETURN(const std::vector<AddedToken> tokens, ReadTokens(node));
  for (const AddedToken& token : tokens) added.Add(token, vocabulary);
  for (const AddedToken& token : config) {
    const AddedToken* const changed = added.Add(token, vocabulary);
    if (changed != nullptr) added.changed_.push_back(*changed);
  }
  CONVENE_RETURN_IF_ERROR(added.MakeFinders(normalizer));
  return added;
}

absl::StatusOr<SpecialContents> AddedTokens::ReadSpecials(const std::optional<JsonNode>& node,
                                                          const std::vector<AddedToken>& config) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<AddedToken> tokens, ReadTokens(node));
  SpecialContents specials;
  for (const std::vector<AddedToken>* of : {&tokens, &config}) {
    for (const AddedToken& token : *of) {
      if (token.special) specials.insert(token.content);
    }
  }
  return specials;
}

int32_t AddedTokens::NextId(const Vocabulary& vocabulary) const {
  const auto size = static_cast<int32_t>(vocabulary.size());
  return std::max(size, id_count_);
}

const AddedToken* AddedTokens::Add(const AddedToken& token, const Vocabulary& vocabulary) {
  if (token.content.empty()) return nullptr;
  if (token.special && specials_.emplace(token.content, token.normalized).second) {
    special_order_.push_back(token);
  }
  AddedToken added = token;
  if (const auto first = specials_.find(token.content); first != specials_.end()) {
    added.normalized = first->second;
    added.special = true;  // A token that was special once stays so.
  }
  if (const auto known = ids_.find(token.content); known != ids_.end()) {
    added.id = known->second;
    if (tokens_.at(added.id) == added) return nullptr;
  } else {
    added.id = vocabulary.Find(token.content).value_or(NextId(vocabulary));
  }
  ids_.insert_or_assign(added.content, added.id);
  if (!added.special) other_order_.push_back(added);
  id_count_ = std::max(id_count_, added.id + 1);
  const int32_t id = added.id;
  return &tokens_.insert_or_assign(id, std::move(added)).first->second;
}

absl::Status AddedTokens::MakeFinders(const TextNormalizer& normalizer) {
  TextNormalizer::Scratch scratch;
  std::vector<std::string> keys;
  keys.reserve(special_order_.size() + other_order_.size());
  std::vector<ByteTrie::Entry> raw, normalized;
  for (const std::vector<AddedToken>* order : {&special_order_, &other_order_}) {
    for (const AddedToken& token : *order) {
      size_t at_start = 0;
      keys.emplace_back(token.normalized ? normalizer.Apply(token.content, &at_start, &scratch)
                                         : token.content);
      // The original then cuts the text at every byte, and fails within a character.
      if (keys.back().empty()) {
        return LacksFeature("added_tokens",
                            absl::StrCat("a \"normalized\" token, \"", token.content,
                                         "\", that the normalizer makes empty,"));
      }
      const int32_t id = ids_.at(token.content);
      decoded_.insert_or_assign(id, keys.back());
      (token.normalized ? normalized : raw).push_back({keys.back(), id});
    }
  }
  // The first of equal keys counts; a trie takes the last.
  std::reverse(raw.begin(), raw.end());
  std::reverse(normalized.begin(), normalized.end());
  raw_ = ByteTrie(std::move(raw));
  normalized_ = ByteTrie(std::move(normalized));
  return absl::OkStatus();
}

void AddedTokens::ForEachCut(absl::string_view text, bool normalized, bool with_specials,
                             absl::FunctionRef<void(const Cut&)> take) const {
  const ByteTrie& trie = normalized ? normalized_ : raw_;
  size_t done = 0;       // what lies before is cut
  size_t space_end = 0;  // the end of the last white space behind a token
  for (size_t at = 0;;) {
    const ByteTrie::Found found = trie.FindFirst(text, at);
    if (found.match.length == 0) break;
    size_t begin = found.begin;
    size_t end = begin + found.match.length;
    at = end;  // also where the token is not taken: the original looks on behind it
    const AddedToken& token = tokens_.at(found.match.value);
    if (!with_specials && IsSpecial(token.content)) continue;
    if (token.single_word && !StandsAlone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(SpaceBegin(text, done, begin), done);
    if (token.rstrip) {
      // A run of tokens that are white space themselves is not walked again for each.
      if (end >= space_end) space_end = SpaceEnd(text, end);
      end = space_end;
    }
    if (done < begin) take({done, begin, -1});
    // Nothing is left of a token whose text went with the white space of the one before it.
    if (begin < end) take({begin, end, found.match.value});
    done = end;
  }
  if (done != text.size()) take({done, text.size(), -1});
}

const AddedToken* AddedTokens::Find(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::optional<int32_t> AddedTokens::Find(absl::string_view content) const {
  const auto found = ids_.find(content);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace convene::worker
