#include "worker_runtime/weights/tokenizer_files.h"

#include <rapidjson/writer.h>

#include <filesystem>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/json_buffer.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/gguf/gguf_tokenizer.h"
#include "worker_runtime/tokenizer/compact_vocabulary.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {
namespace {

constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kEnds[] = "eos_token_id";

constexpr absl::string_view kNames[] = {
    "added_tokens.json", "chat_template.jinja",     kCompactVocabularyFile,  kGenerationConfig,
    "merges.txt",        "special_tokens_map.json", "tekken.json",           "tiktoken.model",
    "tokenizer.json",    "tokenizer.model",         "tokenizer_config.json", "vocab.json"};

// As data/chat/chat_format.h has it.
constexpr char kToolUseTemplate[] = "additional_chat_templates/tool_use.jinja";

bool IsOfTokenizer(absl::string_view name) {
  return absl::EndsWith(name, ".tiktoken") || absl::c_linear_search(kNames, name);
}

// The file alone, under a name that is looked for in a folder, and what names its tokens.
absl::StatusOr<std::vector<NamedFile>> FilesOfFile(const std::string& path) {
  std::vector<NamedFile> files;
  CONVENE_ASSIGN_OR_RETURN(std::string content, ReadFile(path));
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(content), "{");
  std::string name = std::filesystem::path(path).filename().string();
  if (!IsOfTokenizer(name)) name = is_json ? "tokenizer.json" : "tokenizer.model";
  files.push_back({std::move(name), std::move(content)});
  for (const char* const beside : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string beside_path = absl::StrCat(ParentDirectory(path), "/", beside);
    if (!IsFile(beside_path)) continue;
    CONVENE_ASSIGN_OR_RETURN(std::string text, ReadFile(beside_path));
    files.push_back({beside, std::move(text)});
  }
  return files;
}

// The tokens at which a model of the folder ends its answers stand in config.json where
// generation_config.json names none. The former does not go with a tokenizer, so they move to the
// latter, with the other tokens for which transformers looks in one of the two.
absl::Status AddEnds(const std::string& folder, std::vector<NamedFile>* files) {
  const std::string path = absl::StrCat(folder, "/config.json");
  if (!IsFile(path)) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const absl::StatusOr<JsonDocument> config = JsonDocument::Parse(text);
  auto file =
      absl::c_find_if(*files, [](const NamedFile& one) { return one.name == kGenerationConfig; });
  const absl::StatusOr<JsonDocument> generation =
      JsonDocument::Parse(file == files->end() ? "{}" : file->content);
  // A file that is no object of JSON (as transformers reads it, Infinity may stand in it) names no
  // tokens here, and goes as it is.
  if (!config.ok() || !generation.ok() || !generation->root().value().IsObject()) {
    return absl::OkStatus();
  }
  if (!config->root().Find(kEnds).has_value() || generation->root().Find(kEnds).has_value()) {
    return absl::OkStatus();
  }
  JsonBuffer buffer;
  rapidjson::Writer<JsonBuffer> json(buffer);
  json.StartObject();
  for (const auto& member : generation->root().value().GetObject()) {
    if (member.value.IsNull()) continue;
    json.Key(member.name.GetString());
    member.value.Accept(json);
  }
  for (const char* const key : {"bos_token_id", kEnds, "pad_token_id"}) {
    const std::optional<JsonNode> own = config->root().Find(key);
    if (!own.has_value() || generation->root().Find(key).has_value()) continue;
    json.Key(key);
    own->value().Accept(json);
  }
  json.EndObject();
  if (file == files->end()) file = files->insert(file, {kGenerationConfig, ""});
  file->content = absl::StrCat(buffer.GetString(), "\n");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<NamedFile>> TokenizerFiles(const std::string& path) {
  if (path.empty() || path == "byte") return std::vector<NamedFile>();
  if (IsGgufFile(path)) {
    CONVENE_ASSIGN_OR_RETURN(GgufTokenizer inside, ReadGgufTokenizer(path));
    return std::vector<NamedFile>{{std::move(inside.file_name), std::move(inside.content)},
                                  {"tokenizer_config.json", std::move(inside.config_json)}};
  }
  if (!IsDirectory(path)) return FilesOfFile(path);
  CONVENE_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(path));
  std::erase_if(names, [](const std::string& name) { return !IsOfTokenizer(name); });
  const std::string tool_use = kToolUseTemplate;
  if (IsFile(absl::StrCat(path, "/", tool_use))) names.push_back(tool_use);
  std::vector<NamedFile> files;
  for (const std::string& name : names) {
    CONVENE_ASSIGN_OR_RETURN(std::string content, ReadFile(absl::StrCat(path, "/", name)));
    files.push_back({name, std::move(content)});
  }
  CONVENE_RETURN_IF_ERROR(AddEnds(path, &files));
  absl::c_sort(files, [](const NamedFile& a, const NamedFile& b) { return a.name < b.name; });
  return files;
}

absl::StatusOr<std::vector<NamedFile>> TokenizerFilesForOthers(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(std::vector<NamedFile> files, TokenizerFiles(path));
  const bool is_compact = absl::c_any_of(
      files, [](const NamedFile& file) { return file.name == kCompactVocabularyFile; });
  if (is_compact) files.clear();
  return files;
}

absl::Status WriteNamedFile(const std::string& folder, const NamedFile& file) {
  const std::string path = absl::StrCat(folder, "/", file.name);
  CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(path)));
  return WriteFileAtomic(path, file.content);
}

}  // namespace convene::worker
