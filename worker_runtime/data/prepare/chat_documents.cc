#include "worker_runtime/data/prepare/chat_documents.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker {
namespace {

// The key has all that decides about a template's text beside the conversation.
absl::StatusOr<std::string> KeyOf(const FolderTemplate& folder, const Tokenizer& tokenizer) {
  jinja::Dict variables = folder.variables;
  CONVENE_RETURN_IF_ERROR(SetNamedTokens(tokenizer.named_tokens(), &variables));
  CONVENE_ASSIGN_OR_RETURN(const jinja::Value value, jinja::NewDict(std::move(variables)));
  jinja::Budget budget(/*steps=*/int64_t{1} << 40, /*max_bytes=*/size_t{1} << 40);
  std::string json;
  CONVENE_RETURN_IF_ERROR(jinja::AppendJson(value, {}, &budget, &json));
  // Texts of any content one behind the other.
  std::string key;
  for (const std::string& text : {folder.source, folder.tool_use_source, json}) {
    absl::StrAppend(&key, text.size(), " ", text, "\n");
  }
  return key;
}

}  // namespace

absl::StatusOr<DocumentFormat> ChatDocuments(const std::string& name_or_path,
                                             const ChatOptions& options,
                                             const Tokenizer* tokenizer) {
  CONVENE_ASSIGN_OR_RETURN(ChatFormat format, LoadChatFormat(name_or_path));
  constexpr const char* kSides[] = {"", "chosen ", "rejected "};
  std::string of_format = name_or_path;
  if (const auto* const folder = std::get_if<FolderTemplate>(&format)) {
    CONVENE_ASSIGN_OR_RETURN(of_format, KeyOf(*folder, *tokenizer));
  }
  std::string key = absl::StrCat("chat ", static_cast<int>(options.train_on), " ",
                                 kSides[static_cast<int>(options.side)], of_format);
  if (options.date.has_value()) absl::StrAppend(&key, absl::FormatCivilTime(*options.date));
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<ChatEncoderFactory> made,
                           ChatEncoderFactory::Make(std::move(format), tokenizer, options));
  const std::shared_ptr<const ChatEncoderFactory> factory = std::move(made);
  return DocumentFormat{.key = std::move(key), .fields = RecordFields(), .new_encoder = [factory] {
                          return factory->New();
                        }};
}

}  // namespace convene::worker
