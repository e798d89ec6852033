#include "worker_runtime/tokenizer/tokenizer_config.h"

#include <rapidjson/writer.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/files.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr char kFile[] = "the tokenizer_config.json beside it";
constexpr int32_t kLargestId = 1 << 24;

absl::StatusOr<std::string> ReadIfThere(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

std::string Quoted(absl::string_view text) {
  JsonBuffer buffer;
  rapidjson::Writer<JsonBuffer> writer(buffer);
  writer.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
  return buffer.GetString();
}

// A special token's text: it stands alone, or as the "content" beside its properties.
std::optional<std::string> TextOfToken(const JsonNode& token) {
  const std::optional<JsonNode> content = token.Find("content");
  const absl::StatusOr<std::string> text = content.has_value() ? content->String() : token.String();
  if (!text.ok()) return std::nullopt;
  return *text;
}

std::string TextAt(const JsonNode& config, const char* key) {
  const std::optional<JsonNode> token = config.Find(key);
  return token.has_value() ? TextOfToken(*token).value_or("") : "";
}

void AppendNamed(absl::string_view name, const JsonNode& token, std::vector<NamedToken>* named) {
  const std::optional<std::string> text = TextOfToken(token);
  if (text.has_value()) named->push_back({std::string(name), *text});
}

std::vector<NamedToken> NamedTokensOf(const JsonNode& config) {
  std::vector<NamedToken> named;
  for (const auto& member : config.value().GetObject()) {
    const absl::string_view name = TextOf(member.name);
    const JsonNode node(&member.value, "");
    if (absl::EndsWith(name, "_token")) AppendNamed(name, node, &named);
    if (name == "additional_special_tokens" && member.value.IsArray()) {
      for (const auto& token : member.value.GetArray()) {
        AppendNamed(name, JsonNode(&token, ""), &named);
      }
    }
    const bool holds_names =
        name == "extra_special_tokens" || name == "model_specific_special_tokens";
    if (!holds_names || !member.value.IsObject()) continue;
    for (const auto& inner : member.value.GetObject()) {
      AppendNamed(TextOf(inner.name), JsonNode(&inner.value, ""), &named);
    }
  }
  return named;
}

std::optional<bool> BoolAt(const JsonNode& config, const char* key) {
  const std::optional<JsonNode> member = config.Find(key);
  if (!member.has_value() || !member->value().IsBool()) return std::nullopt;
  return member->value().GetBool();
}

AddedToken ReadAddedToken(const JsonNode& node, int32_t id) {
  const auto flag = [&node](const char* key, bool otherwise) {
    return BoolAt(node, key).value_or(otherwise);
  };
  const bool is_special = flag("special", false);
  return {.content = TextOfToken(node).value_or(""),
          .id = id,
          .single_word = flag("single_word", false),
          .lstrip = flag("lstrip", false),
          .rstrip = flag("rstrip", false),
          .normalized = flag("normalized", !is_special),
          .special = is_special};
}

}  // namespace

absl::StatusOr<std::string> ReadTokenizerConfig(const std::string& folder) {
  const std::string map_path = folder + "/special_tokens_map.json";
  CONVENE_ASSIGN_OR_RETURN(std::string config_text, ReadIfThere(folder + "/tokenizer_config.json"));
  CONVENE_ASSIGN_OR_RETURN(const std::string map_text, ReadIfThere(map_path));
  if (map_text.empty()) return config_text;
  const absl::StatusOr<JsonDocument> map = JsonDocument::Parse(map_text);
  if (!map.ok() || !map->root().value().IsObject()) {
    return absl::InvalidArgumentError(absl::StrCat(map_path, " is no JSON object"));
  }
  if (config_text.empty()) config_text = "{}";
  const absl::StatusOr<JsonDocument> config = JsonDocument::Parse(config_text);
  if (!config.ok() || !config->root().value().IsObject()) return config_text;
  std::vector<std::string> added;
  for (const auto& member : map->root().value().GetObject()) {
    const absl::string_view name = TextOf(member.name);
    const std::optional<std::string> text = TextOfToken(JsonNode(&member.value, ""));
    if (config->root().Find(name).has_value() || !text.has_value()) continue;
    added.push_back(absl::StrCat(Quoted(name), ":", Quoted(*text)));
  }
  if (added.empty()) return config_text;
  // Behind the members that are there: of two with one name the last one counts.
  absl::string_view members = absl::StripAsciiWhitespace(config_text);
  members.remove_suffix(1);
  const bool is_first = config->root().value().MemberCount() == 0;
  return absl::StrCat(members, is_first ? "" : ",", absl::StrJoin(added, ","), "}");
}

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
  result.tokenizer_class = TextAt(config, "tokenizer_class");
  result.begin_of_document = TextAt(config, "bos_token");
  result.end_of_document = TextAt(config, "eos_token");
  result.adds_begin_of_document = BoolAt(config, "add_bos_token");
  result.adds_end_of_document = BoolAt(config, "add_eos_token");
  result.named_tokens = NamedTokensOf(config);
  const std::optional<JsonNode> added = config.Find("added_tokens_decoder");
  if (!added.has_value() || !added->value().IsObject()) return result;
  for (const auto& [key, token] : added->value().GetObject()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(TextOf(key), &id) || id < 0 || id > kLargestId) {
      return absl::InvalidArgumentError(
          absl::StrCat(kFile, " has \"", Utf8(TextOf(key), 50),
                       "\" in added_tokens_decoder, which is no id from 0 to ", kLargestId));
    }
    AddedToken read = ReadAddedToken(JsonNode(&token, added->place()), id);
    if (!read.content.empty()) result.added_tokens.push_back(std::move(read));
  }
  const auto by_id = [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; };
  std::stable_sort(result.added_tokens.begin(), result.added_tokens.end(), by_id);
  return result;
}

}  // namespace convene::worker
