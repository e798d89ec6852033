#include "worker_runtime/tokenizer/tiktoken.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"
#include "worker_runtime/tokenizer/known_vocabularies.h"
#include "worker_runtime/tokenizer/special_tokens.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"

namespace convene::worker {
namespace {

// Ranks may have holes, but a short file must not ask for much memory.
constexpr size_t kHolesAllowed = 1000;

// The rest of the text up to a line's end, without it; moves on to the next line.
absl::string_view TakeLine(absl::string_view* text) {
  const size_t end = text->find('\n');
  absl::string_view line = text->substr(0, end);
  text->remove_prefix(end == absl::string_view::npos ? text->size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

struct RankedToken {
  std::string bytes;
  int32_t rank = 0;
};

std::optional<RankedToken> ParseLine(absl::string_view line) {
  const size_t space = line.find(' ');
  if (space == absl::string_view::npos || space == 0) return std::nullopt;
  RankedToken token;
  if (!absl::SimpleAtoi(line.substr(space + 1), &token.rank) || token.rank < 0) return std::nullopt;
  if (!absl::Base64Unescape(line.substr(0, space), &token.bytes)) return std::nullopt;
  if (token.bytes.empty()) return std::nullopt;
  return token;
}

absl::Status BadLine(size_t number, absl::string_view line, absl::string_view complaint) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", number, " ", complaint, ": \"", Utf8(line, 60), "\""));
}

// The tokens by rank.
absl::StatusOr<std::vector<std::string>> ParseTokens(absl::string_view content) {
  const auto lines = static_cast<size_t>(std::count(content.begin(), content.end(), '\n')) + 1;
  std::vector<std::string> tokens;
  size_t number = 0;
  while (!content.empty()) {
    ++number;
    const absl::string_view line = TakeLine(&content);
    if (line.empty()) continue;
    std::optional<RankedToken> token = ParseLine(line);
    if (!token.has_value()) {
      return BadLine(number, line, "is not the base64 of a token, a space and its rank");
    }
    const auto rank = static_cast<size_t>(token->rank);
    if (rank >= lines + kHolesAllowed) {
      return BadLine(number, line, "has a rank far above the number of lines");
    }
    if (rank >= tokens.size()) tokens.resize(rank + 1);
    if (!tokens[rank].empty()) return BadLine(number, line, "has the rank of an earlier line");
    tokens[rank] = std::move(token->bytes);
  }
  return tokens;
}

std::optional<int32_t> IdOf(absl::string_view text,
                            const std::vector<SpecialTokens::Token>& tokens) {
  for (const SpecialTokens::Token& token : tokens) {
    if (!text.empty() && token.text == text) return token.id;
  }
  return std::nullopt;
}

// The known special tokens with the config's in place of those with the same id or text. A token
// that the vocabulary has as an ordinary one stays ordinary.
std::vector<SpecialTokens::Token> Merged(const std::vector<SpecialTokens::Token>& known,
                                         const std::vector<AddedToken>& config,
                                         const std::vector<std::string>& tokens) {
  std::map<int32_t, std::string> text_of;
  absl::flat_hash_set<std::string> named;
  for (const AddedToken& token : config) {
    const auto index = static_cast<size_t>(token.id);
    if (index >= tokens.size() || tokens[index].empty()) text_of[token.id] = token.content;
    named.insert(token.content);
  }
  for (const SpecialTokens::Token& token : known) {
    if (!named.contains(token.text)) text_of.emplace(token.id, token.text);
  }
  std::vector<SpecialTokens::Token> merged;
  for (auto& [id, text] : text_of) merged.push_back({text, id});
  return merged;
}

absl::Status NoPattern(size_t tokens, uint64_t digest) {
  return absl::InvalidArgumentError(absl::StrCat(
      "its ", tokens, " tokens (digest ", absl::Hex(digest, absl::kZeroPad16), ") are none of ",
      absl::StrJoin(KnownVocabularyNames(), ", "),
      ", and such a file does not say how text is split before tokens are looked up. Write the "
      "regular expression that the model was trained with as \"pat_str\" into a "
      "tokenizer_config.json beside it, or use the model's tokenizer.json"));
}

}  // namespace

bool LooksLikeTiktoken(absl::string_view content) {
  // Longer than the first line of any real file.
  absl::string_view start = content.substr(0, 4096);
  return ParseLine(TakeLine(&start)).has_value();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTiktoken(absl::string_view content,
                                                        const std::string& config_json) {
  CONVENE_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ParseTokens(content));
  CONVENE_ASSIGN_OR_RETURN(const VocabularyConfig config, ReadVocabularyConfig(config_json));
  const uint64_t digest = TokensDigest(tokens);
  const KnownVocabulary* const known = FindKnownVocabulary(tokens.size(), digest);
  if (known == nullptr && config.pattern.empty()) return NoPattern(tokens.size(), digest);

  static const auto* const nothing = new KnownVocabulary();
  const KnownVocabulary& base = known == nullptr ? *nothing : *known;
  ByteBpeParts parts;
  parts.kind = known == nullptr ? "tiktoken" : absl::StrCat("tiktoken (", base.name, ")");
  parts.pattern = config.pattern.empty() ? std::string(base.pattern) : config.pattern;
  parts.special_tokens = Merged(base.special_tokens, config.added_tokens, tokens);
  const absl::string_view begin = config.begin_of_document.empty()
                                      ? base.begin_of_document
                                      : absl::string_view(config.begin_of_document);
  const std::optional<int32_t> begin_id = IdOf(begin, parts.special_tokens);
  if (begin_id.has_value() &&
      config.adds_begin_of_document.value_or(!base.begin_of_document.empty())) {
    parts.prefix = {*begin_id};
  }
  parts.end_of_document =
      IdOf(known == nullptr ? absl::string_view(config.end_of_document) : base.end_of_document,
           parts.special_tokens);
  parts.is_normalized_to_nfc = base.is_normalized_to_nfc;
  parts.tokens = std::move(tokens);
  return MakeByteBpeTokenizer(std::move(parts));
}

}  // namespace convene::worker
