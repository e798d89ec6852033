// Finds a chat format: one that we know by name, or the template of a model folder. Reads files.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "absl/types/span.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/chat/named_template.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Where transformers saves the template for conversations with tools, beside chat_template.jinja.
inline constexpr char kToolUseTemplateName[] = "additional_chat_templates/tool_use.jinja";

// A template, and the variables that the folder gives it in which it stands: bos_token and so on.
struct FolderTemplate {
  jinja::ChatTemplate chat_template;
  // For conversations with tools, where the folder has another one for them.
  std::optional<jinja::ChatTemplate> tool_use;
  jinja::Dict variables;
  std::string source;           // of chat_template
  std::string tool_use_source;  // of tool_use; "": there is none
};

using ChatFormat = std::variant<NamedTemplate, FolderTemplate>;

// Sets the template's variables of these names, over those that are there.
absl::Status SetNamedTokens(absl::Span<const NamedToken> named, jinja::Dict* variables);

// A template's text; `config` is tokenizer_config.json as JSON, or empty.
// InvalidArgument, Unimplemented, ResourceExhausted: ChatTemplate::Parse's, or broken JSON.
absl::StatusOr<FolderTemplate> MakeFolderTemplate(const std::string& source,
                                                  const std::string& config);

// `name_or_path`: one of NamedTemplateNames(); a file of the very name tokenizer_config.json, of
// which the key chat_template is taken (a text, or a list with names of which "default" and
// "tool_use" are used); a GGUF file, with such a key in it; any other file, which is a template,
// with tokenizer_config.json beside it and, beside chat_template.jinja, kToolUseTemplateName; or a
// model folder, of which chat_template.jinja is taken, else tokenizer_config.json.
//
// NotFound: no such name and no such path, or a folder without a chat template. InvalidArgument,
// Unimplemented, ResourceExhausted: the template's. All with the path.
absl::StatusOr<ChatFormat> LoadChatFormat(const std::string& name_or_path);

// The value of --chat-template, as LoadChatFormat takes it: for auto the path of the template that
// belongs to `tokenizer` (as LoadTokenizer takes it), a folder or a GGUF file, and never the name
// of a format; all else as it is. InvalidArgument: auto, and byte, which has none.
absl::StatusOr<std::string> ResolveTemplate(const std::string& said, const std::string& tokenizer);

// The value of --chat-date, the answer to a template that asks for today's date: "2026-11-30"; "":
// there is none. InvalidArgument: no such day.
absl::StatusOr<std::optional<absl::CivilDay>> ParseChatDate(const std::string& text);

}  // namespace convene::worker
