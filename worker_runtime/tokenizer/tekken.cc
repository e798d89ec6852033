#include "worker_runtime/tokenizer/tekken.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/special_tokens.h"

namespace convene::worker {
namespace {

constexpr absl::string_view kVersions[] = {"v1", "v2", "v3", "v7", "v11", "v13", "v15"};
constexpr int64_t kLargestVocabulary = 1 << 24;
// A short file must not ask for much memory. Real files have 1,000.
constexpr int64_t kMostSpecialTokens = 100'000;

// The special tokens of files up to version 7, which do not name them (mistral-common,
// DEPRECATED_SPECIAL_TOKENS).
constexpr absl::string_view kOldSpecialTokens =
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]";

// The bytes of each id: none for the special tokens, then those of `vocab` up to `size` ids.
absl::StatusOr<std::vector<std::string>> ReadTokens(const JsonNode& file, int64_t size,
                                                    int64_t specials) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode vocab, file.Get("vocab"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> entries, vocab.Elements());
  if (size < specials || size - specials > static_cast<int64_t>(entries.size())) {
    return vocab.Error(absl::StrCat("has ", entries.size(), " tokens, but default_vocab_size is ",
                                    size, " with ", specials, " special tokens"));
  }
  std::vector<std::string> tokens(static_cast<size_t>(specials));
  for (int64_t rank = 0; rank < size - specials; ++rank) {
    const JsonNode& entry = entries[static_cast<size_t>(rank)];
    CONVENE_ASSIGN_OR_RETURN(const int64_t stated, entry.GetNumber("rank", kLargestVocabulary));
    CONVENE_ASSIGN_OR_RETURN(const std::string base64, entry.GetString("token_bytes"));
    std::string bytes;
    if (stated != rank || !absl::Base64Unescape(base64, &bytes) || bytes.empty()) {
      return entry.Error(absl::StrCat("is no token of rank ", rank, " with its bytes in base64"));
    }
    tokens.push_back(std::move(bytes));
  }
  return tokens;
}

absl::StatusOr<std::vector<SpecialTokens::Token>> ReadSpecialTokens(const JsonNode& file,
                                                                    int64_t count) {
  std::vector<std::string> texts(static_cast<size_t>(count));
  if (const auto named = file.Find("special_tokens"); named.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> entries, named->Elements());
    for (const JsonNode& entry : entries) {
      CONVENE_ASSIGN_OR_RETURN(const int64_t rank, entry.GetNumber("rank", count - 1));
      CONVENE_ASSIGN_OR_RETURN(texts[static_cast<size_t>(rank)], entry.GetString("token_str"));
    }
  } else {
    const std::vector<std::string> known = absl::StrSplit(kOldSpecialTokens, ' ');
    std::copy_n(known.begin(), std::min(known.size(), texts.size()), texts.begin());
  }
  std::vector<SpecialTokens::Token> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(count); ++id) {
    std::string& text = texts[static_cast<size_t>(id)];
    if (text.empty()) text = absl::StrCat("<SPECIAL_", id, ">");
    tokens.push_back({std::move(text), id});
  }
  return tokens;
}

}  // namespace

bool LooksLikeTekken(absl::string_view json) {
  // "config" or the first tokens stand at the beginning. No tokenizer.json has such names.
  const absl::string_view start = json.substr(0, 4096);
  return start.find("\"default_num_special_tokens\"") != absl::string_view::npos ||
         start.find("\"token_bytes\"") != absl::string_view::npos;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTekken(absl::string_view json) {
  CONVENE_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::Parse(json));
  const JsonNode file = document.root();
  CONVENE_ASSIGN_OR_RETURN(const JsonNode config, file.Get("config"));
  CONVENE_ASSIGN_OR_RETURN(const std::string version, config.GetString("version"));
  if (std::find(std::begin(kVersions), std::end(kVersions), absl::string_view(version)) ==
      std::end(kVersions)) {
    return absl::UnimplementedError(absl::StrCat("its version is ", Utf8(version, 20),
                                                 "; this program knows versions up to v15"));
  }
  CONVENE_ASSIGN_OR_RETURN(const int64_t size,
                           config.GetNumber("default_vocab_size", kLargestVocabulary));
  CONVENE_ASSIGN_OR_RETURN(const int64_t specials,
                           config.GetNumber("default_num_special_tokens", kMostSpecialTokens));
  ByteBpeParts parts;
  parts.kind = "tekken";
  CONVENE_ASSIGN_OR_RETURN(parts.tokens, ReadTokens(file, size, specials));
  CONVENE_ASSIGN_OR_RETURN(parts.special_tokens, ReadSpecialTokens(file, specials));
  CONVENE_ASSIGN_OR_RETURN(parts.pattern, config.GetString("pattern"));
  for (const SpecialTokens::Token& token : parts.special_tokens) {
    if (token.text == "<s>") parts.prefix = {token.id};
    if (token.text == "</s>") parts.end_of_document = token.id;
  }
  return MakeByteBpeTokenizer(std::move(parts));
}

}  // namespace convene::worker
