#include "worker_runtime/tokenizer/vocabulary_config.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr char kFile[] = "the tokenizer_config.json beside it";
constexpr int32_t kLargestId = 1 << 24;

// A token is written as its text, or as an object with it as "content"; else it is empty.
std::string TextOfToken(const JsonNode& token) {
  return token.GetString("content").value_or(token.String().value_or(""));
}

std::string TextAt(const JsonNode& config, const char* key) {
  const std::optional<JsonNode> token = config.Find(key);
  return token.has_value() ? TextOfToken(*token) : "";
}

std::optional<bool> BoolAt(const JsonNode& config, const char* key) {
  const std::optional<JsonNode> member = config.Find(key);
  if (!member.has_value() || !member->value().IsBool()) return std::nullopt;
  return member->value().GetBool();
}

}  // namespace

absl::StatusOr<VocabularyConfig> ReadVocabularyConfig(const std::string& json) {
  VocabularyConfig result;
  if (json.empty()) return result;
  const absl::StatusOr<JsonDocument> document = JsonDocument::Parse(json);
  if (!document.ok()) return Annotate(document.status(), kFile);
  const JsonNode config = document->root();
  if (!config.value().IsObject()) {
    return absl::InvalidArgumentError(absl::StrCat(kFile, " is no JSON object"));
  }
  result.pattern = TextAt(config, "pat_str");
  result.begin_of_document = TextAt(config, "bos_token");
  result.end_of_document = TextAt(config, "eos_token");
  result.adds_begin_of_document = BoolAt(config, "add_bos_token");
  result.adds_end_of_document = BoolAt(config, "add_eos_token");
  const std::optional<JsonNode> added = config.Find("added_tokens_decoder");
  if (!added.has_value() || !added->value().IsObject()) return result;
  for (const auto& [key, token] : added->value().GetObject()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(TextOf(key), &id) || id < 0 || id > kLargestId) {
      return absl::InvalidArgumentError(
          absl::StrCat(kFile, " has \"", Utf8(TextOf(key), 50),
                       "\" in added_tokens_decoder, which is no id from 0 to ", kLargestId));
    }
    const std::string text = TextOfToken(JsonNode(&token, added->place()));
    if (!text.empty()) result.special_tokens.push_back({text, id});
  }
  return result;
}

}  // namespace convene::worker
