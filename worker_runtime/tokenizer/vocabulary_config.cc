#include "worker_runtime/tokenizer/vocabulary_config.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/special_tokens.h"

namespace convene::worker {
namespace {

using Json = nlohmann::json;

constexpr int32_t kLargestId = 1 << 24;

// A token is written as its text, or as an object with it as "content".
std::string TextOf(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (!token.is_object()) return "";
  const auto content = token.find("content");
  return content != token.end() && content->is_string() ? content->get<std::string>() : "";
}

std::string TextAt(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found == config.end() ? "" : TextOf(*found);
}

std::optional<bool> BoolAt(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

}  // namespace

absl::StatusOr<VocabularyConfig> ReadVocabularyConfig(const std::string& json) {
  VocabularyConfig result;
  if (json.empty()) return result;
  const Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError("the tokenizer_config.json beside it is no JSON object");
  }
  result.pattern = TextAt(config, "pat_str");
  result.begin_of_document = TextAt(config, "bos_token");
  result.end_of_document = TextAt(config, "eos_token");
  result.adds_begin_of_document = BoolAt(config, "add_bos_token");
  result.adds_end_of_document = BoolAt(config, "add_eos_token");
  const auto added = config.find("added_tokens_decoder");
  if (added == config.end() || !added->is_object()) return result;
  for (const auto& [key, token] : added->items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id > kLargestId) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tokenizer_config.json beside it has \"", Utf8(key, 50),
                       "\" in added_tokens_decoder, which is no id from 0 to ", kLargestId));
    }
    const std::string text = TextOf(token);
    if (!text.empty()) result.special_tokens.push_back({text, id});
  }
  return result;
}

}  // namespace convene::worker
