#include "worker_runtime/tokenizer/tekken.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"
#include "worker_runtime/tokenizer/special_tokens.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersions[] = {"v1", "v2", "v3", "v7", "v11", "v13", "v15"};
constexpr int64_t kLargestVocabulary = 1 << 24;
// A short file must not ask for much memory. Real files have 1,000.
constexpr int64_t kMostSpecialTokens = 100'000;

// The special tokens of files up to version 7, which do not name them (mistral-common,
// DEPRECATED_SPECIAL_TOKENS).
constexpr const char* kOldSpecialTokens[] = {"<unk>",
                                             "<s>",
                                             "</s>",
                                             "[INST]",
                                             "[/INST]",
                                             "[AVAILABLE_TOOLS]",
                                             "[/AVAILABLE_TOOLS]",
                                             "[TOOL_RESULTS]",
                                             "[/TOOL_RESULTS]",
                                             "[TOOL_CALLS]",
                                             "[IMG]",
                                             "<pad>",
                                             "[IMG_BREAK]",
                                             "[IMG_END]",
                                             "[PREFIX]",
                                             "[MIDDLE]",
                                             "[SUFFIX]",
                                             "[SYSTEM_PROMPT]",
                                             "[/SYSTEM_PROMPT]",
                                             "[TOOL_CONTENT]"};

absl::Status Damaged(absl::string_view complaint) { return absl::InvalidArgumentError(complaint); }

// The member `key` of an object, or null.
const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<int64_t> Number(const Json& object, const char* key, int64_t largest) {
  const Json* const number = Find(object, key);
  if (number != nullptr && number->is_number_integer()) {
    const auto value = number->get<int64_t>();
    if (value >= 0 && value <= largest) return value;
  }
  return Damaged(absl::StrCat("\"", key, "\" is no whole number from 0 to ", largest));
}

absl::StatusOr<std::string> Text(const Json& object, const char* key) {
  const Json* const text = Find(object, key);
  if (text != nullptr && text->is_string()) return text->get<std::string>();
  return Damaged(absl::StrCat("\"", key, "\" is no text"));
}

// The bytes of each id: none for the special tokens, then those of `vocab` up to `size` ids.
absl::StatusOr<std::vector<std::string>> ReadTokens(const Json& file, int64_t size,
                                                    int64_t specials) {
  const Json* const vocab = Find(file, "vocab");
  if (vocab == nullptr || !vocab->is_array()) return Damaged("\"vocab\" is no list");
  if (size < specials || size - specials > static_cast<int64_t>(vocab->size())) {
    return Damaged(absl::StrCat("default_vocab_size is ", size, " with ", specials,
                                " special tokens, but \"vocab\" has ", vocab->size(), " tokens"));
  }
  std::vector<std::string> tokens(static_cast<size_t>(specials));
  for (int64_t rank = 0; rank < size - specials; ++rank) {
    const Json& entry = (*vocab)[static_cast<size_t>(rank)];
    const absl::StatusOr<int64_t> stated = Number(entry, "rank", kLargestVocabulary);
    const absl::StatusOr<std::string> base64 = Text(entry, "token_bytes");
    std::string bytes;
    if (!stated.ok() || *stated != rank || !base64.ok() || !absl::Base64Unescape(*base64, &bytes) ||
        bytes.empty()) {
      return Damaged(absl::StrCat("entry ", rank, " of \"vocab\" is no token of rank ", rank,
                                  " with its bytes in base64"));
    }
    tokens.push_back(std::move(bytes));
  }
  return tokens;
}

absl::StatusOr<std::vector<SpecialTokens::Token>> ReadSpecialTokens(const Json& file,
                                                                    int64_t count) {
  std::vector<std::string> texts(static_cast<size_t>(count));
  const Json* const named = Find(file, "special_tokens");
  if (named == nullptr) {
    const size_t known = std::min(std::size(kOldSpecialTokens), texts.size());
    std::copy(kOldSpecialTokens, kOldSpecialTokens + known, texts.begin());
  } else if (!named->is_array()) {
    return Damaged("\"special_tokens\" is no list");
  } else {
    for (const Json& entry : *named) {
      CONVENE_ASSIGN_OR_RETURN(const int64_t rank, Number(entry, "rank", count - 1));
      CONVENE_ASSIGN_OR_RETURN(texts[static_cast<size_t>(rank)], Text(entry, "token_str"));
    }
  }
  std::vector<SpecialTokens::Token> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(count); ++id) {
    std::string& text = texts[static_cast<size_t>(id)];
    if (text.empty()) text = absl::StrCat("<SPECIAL_", id, ">");
    tokens.push_back({std::move(text), id});
  }
  return tokens;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Read(absl::string_view json) {
  const Json file = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return Damaged("no JSON object, or cut off");
  const Json* const config = Find(file, "config");
  if (config == nullptr) return Damaged("it has no \"config\"");
  CONVENE_ASSIGN_OR_RETURN(const std::string version, Text(*config, "version"));
  if (std::find(std::begin(kVersions), std::end(kVersions), version) == std::end(kVersions)) {
    return absl::UnimplementedError(absl::StrCat("its version is ", Utf8(version, 20),
                                                 "; this program knows versions up to v15"));
  }
  CONVENE_ASSIGN_OR_RETURN(const int64_t size,
                           Number(*config, "default_vocab_size", kLargestVocabulary));
  CONVENE_ASSIGN_OR_RETURN(const int64_t specials,
                           Number(*config, "default_num_special_tokens", kMostSpecialTokens));
  ByteBpeParts parts;
  parts.kind = "tekken";
  CONVENE_ASSIGN_OR_RETURN(parts.tokens, ReadTokens(file, size, specials));
  CONVENE_ASSIGN_OR_RETURN(parts.special_tokens, ReadSpecialTokens(file, specials));
  CONVENE_ASSIGN_OR_RETURN(parts.pattern, Text(*config, "pattern"));
  for (const SpecialTokens::Token& token : parts.special_tokens) {
    if (token.text == "<s>") parts.prefix = {token.id};
    if (token.text == "</s>") parts.end_of_document = token.id;
  }
  return MakeByteBpeTokenizer(std::move(parts));
}

}  // namespace

bool LooksLikeTekken(absl::string_view json) {
  // "config" or the first tokens stand at the beginning. No tokenizer.json has such names.
  const absl::string_view start = json.substr(0, 4096);
  return start.find("\"default_num_special_tokens\"") != absl::string_view::npos ||
         start.find("\"token_bytes\"") != absl::string_view::npos;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTekken(absl::string_view json,
                                                      const std::string& path) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Read(json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), absl::StrCat(path, ", a tekken.json"));
  return tokenizer;
}

}  // namespace convene::worker
