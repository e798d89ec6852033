#include "worker_runtime/tokenizer/tokenizer_config.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

using Json = nlohmann::json;

absl::StatusOr<std::string> ReadIfThere(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return std::string();
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadTokenizerConfig(const std::string& folder) {
  const std::string map_path = folder + "/special_tokens_map.json";
  CONVENE_ASSIGN_OR_RETURN(std::string config_text, ReadIfThere(folder + "/tokenizer_config.json"));
  CONVENE_ASSIGN_OR_RETURN(const std::string map_text, ReadIfThere(map_path));
  if (map_text.empty()) return config_text;
  const Json map = Json::parse(map_text, nullptr, /*allow_exceptions=*/false);
  if (!map.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(map_path, " is no JSON object"));
  }
  Json config = config_text.empty() ? Json::object()
                                    : Json::parse(config_text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return config_text;
  for (const auto& [name, token] : map.items()) {
    Json& said = config[name];
    if (said.is_null()) said = token;
  }
  return config.dump();
}

}  // namespace convene::worker
