#include "worker_runtime/tokenizer/tokenizer_config.h"

#include <rapidjson/stringbuffer.h>
#include <rapidjson/writer.h>

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

absl::StatusOr<std::string> ReadIfThere(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

std::string Quoted(absl::string_view text) {
  rapidjson::StringBuffer buffer;
  rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
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

}  // namespace convene::worker
