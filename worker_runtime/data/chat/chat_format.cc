#include "worker_runtime/data/chat/chat_format.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/chat/jinja/read_json.h"
#include "worker_runtime/data/chat/jinja/value.h"
#include "worker_runtime/gguf/gguf_tokenizer.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"

namespace convene::worker {
namespace {

using jinja::ChatTemplate;
using jinja::Dict;
using jinja::Value;

constexpr char kConfigName[] = "tokenizer_config.json";
constexpr char kTemplateName[] = "chat_template.jinja";
constexpr char kAdditional[] = "additional_special_tokens";

absl::Status AddToolUse(const std::string& source, FolderTemplate* made) {
  absl::StatusOr<ChatTemplate> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return Annotate(parsed.status(), "the template 'tool_use'");
  made->tool_use = *std::move(parsed);
  made->tool_use_source = source;
  return absl::OkStatus();
}

// The templates in tokenizer_config.json: a text, or [{"name", "template"}, ...].
absl::StatusOr<FolderTemplate> FromConfig(const std::string& config) {
  CONVENE_ASSIGN_OR_RETURN(const Value value,
                           jinja::ReadJson(config, jinja::LargeIntegers::kAsFloats));
  if (!value.is_dict()) return absl::InvalidArgumentError("it is no JSON object");
  const Value* const given = value.as_dict().Find("chat_template");
  if (given == nullptr || given->is_none()) {
    return absl::NotFoundError("it has no key 'chat_template'");
  }
  if (given->is_string()) return MakeFolderTemplate(given->as_string(), config);
  if (!given->is_list()) {
    return absl::InvalidArgumentError("its 'chat_template' is no text and no list");
  }
  const Value* standard = nullptr;
  const Value* tool_use = nullptr;
  for (const Value& item : given->as_list().items) {
    const Value* const name = item.is_dict() ? item.as_dict().Find("name") : nullptr;
    const Value* const text = item.is_dict() ? item.as_dict().Find("template") : nullptr;
    if (name == nullptr || !name->is_string() || text == nullptr || !text->is_string()) {
      return absl::InvalidArgumentError("its 'chat_template' has an item without name or template");
    }
    if (name->as_string() == "default") standard = text;
    if (name->as_string() == "tool_use") tool_use = text;
  }
  if (standard == nullptr) {
    return absl::InvalidArgumentError("its 'chat_template' has none of the name 'default'");
  }
  CONVENE_ASSIGN_OR_RETURN(FolderTemplate made, MakeFolderTemplate(standard->as_string(), config));
  if (tool_use != nullptr) CONVENE_RETURN_IF_ERROR(AddToolUse(tool_use->as_string(), &made));
  return made;
}

// The template of the file `path`, or where that is tokenizer_config.json or a GGUF file the one
// in it.
absl::StatusOr<ChatFormat> LoadFrom(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string config, ReadTokenizerConfig(ParentDirectory(path)));
  const auto load = [&]() -> absl::StatusOr<FolderTemplate> {
    if (IsGgufFile(path)) {
      CONVENE_ASSIGN_OR_RETURN(const GgufTokenizer inside, ReadGgufTokenizer(path));
      return FromConfig(inside.config_json);
    }
    const std::string name = std::filesystem::path(path).filename().string();
    if (name == kConfigName) return FromConfig(config);
    CONVENE_ASSIGN_OR_RETURN(const std::string source, ReadFile(path));
    CONVENE_ASSIGN_OR_RETURN(FolderTemplate read, MakeFolderTemplate(source, config));
    const std::string tool_use = absl::StrCat(ParentDirectory(path), "/", kToolUseTemplateName);
    if (name == kTemplateName && IsFile(tool_use)) {
      CONVENE_ASSIGN_OR_RETURN(const std::string tools, ReadFile(tool_use));
      CONVENE_RETURN_IF_ERROR(AddToolUse(tools, &read));
    }
    return read;
  };
  absl::StatusOr<FolderTemplate> made = load();
  if (!made.ok()) return Annotate(made.status(), path);
  return ChatFormat(*std::move(made));
}

}  // namespace

absl::Status SetNamedTokens(absl::Span<const NamedToken> named, Dict* variables) {
  std::vector<Value> additional;
  for (const NamedToken& token : named) {
    Value text = Value::OfString(token.text);
    if (token.name == kAdditional) {
      additional.push_back(std::move(text));
    } else {
      variables->Set(token.name, std::move(text));
    }
  }
  if (additional.empty()) return absl::OkStatus();
  CONVENE_ASSIGN_OR_RETURN(Value list, jinja::NewList(std::move(additional)));
  variables->Set(kAdditional, std::move(list));
  return absl::OkStatus();
}

absl::StatusOr<FolderTemplate> MakeFolderTemplate(const std::string& source,
                                                  const std::string& config) {
  CONVENE_ASSIGN_OR_RETURN(const VocabularyConfig named, ReadVocabularyConfig(config));
  CONVENE_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(source));
  FolderTemplate made = {std::move(parsed), std::nullopt, {}, source, ""};
  CONVENE_RETURN_IF_ERROR(SetNamedTokens(named.named_tokens, &made.variables));
  return made;
}

absl::StatusOr<ChatFormat> LoadChatFormat(const std::string& name_or_path) {
  const absl::StatusOr<NamedTemplate> named = FindNamedTemplate(name_or_path);
  if (named.ok()) return ChatFormat(*named);
  const std::vector<std::string> names = NamedTemplateNames();
  std::error_code error;
  if (std::filesystem::is_directory(name_or_path, error)) {
    for (const char* const name : {kTemplateName, kConfigName}) {
      const std::string path = absl::StrCat(name_or_path, "/", name);
      if (std::filesystem::exists(path, error)) return LoadFrom(path);
    }
    return absl::NotFoundError(absl::StrCat(
        name_or_path,
        " has no chat_template.jinja and no tokenizer_config.json: give the name of a chat "
        "template (",
        absl::StrJoin(names, ", "), ") or a folder with one of these files"));
  }
  if (std::filesystem::exists(name_or_path, error)) return LoadFrom(name_or_path);
  return absl::NotFoundError(absl::StrCat("the chat template '", Utf8(name_or_path, 200),
                                          "' is no file and no folder, and none of ",
                                          absl::StrJoin(names, ", ")));
}

absl::StatusOr<std::string> ResolveTemplate(const std::string& said, const std::string& tokenizer) {
  if (said != "auto") return said;
  if (tokenizer.empty() || tokenizer == "byte") {
    return absl::InvalidArgumentError(
        "chat_template auto is the template of the tokenizer, and byte has none: name a tokenizer "
        "(--tokenizer PATH), or a template");
  }
  const bool has_one = IsDirectory(tokenizer) || IsGgufFile(tokenizer);
  std::string path = has_one ? tokenizer : ParentDirectory(tokenizer);
  // A folder of this name is no format.
  if (FindNamedTemplate(path).ok()) path.insert(0, "./");
  return path;
}

absl::StatusOr<std::optional<absl::CivilDay>> ParseChatDate(const std::string& text) {
  if (text.empty()) return std::nullopt;
  absl::CivilDay day;
  if (absl::ParseCivilTime(text, &day)) return day;
  return absl::InvalidArgumentError(
      absl::StrCat("chat_date is \"", Utf8(text, 40), "\"; it can be a day such as 2026-11-30"));
}

}  // namespace convene::worker
