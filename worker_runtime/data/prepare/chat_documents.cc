#include "worker_runtime/data/prepare/chat_documents.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/chat_encoder.h"
#include "worker_runtime/data/chat/chat_format.h"

namespace convene::worker {
namespace {

// All files from which a format may come, as far as they are there.
std::string TextsOf(const std::string& name_or_path) {
  std::string texts;
  for (const std::string& path :
       {name_or_path, name_or_path + "/chat_template.jinja",
        name_or_path + "/tokenizer_config.json", name_or_path + "/special_tokens_map.json",
        ParentDirectory(name_or_path) + "/tokenizer_config.json",
        ParentDirectory(name_or_path) + "/special_tokens_map.json"}) {
    const absl::StatusOr<std::string> text = ReadFile(path);
    if (text.ok()) absl::StrAppend(&texts, text->size(), " ", *text, "\n");
  }
  return texts;
}

}  // namespace

absl::StatusOr<DocumentFormat> ChatDocuments(const std::string& name_or_path, TrainOn train_on,
                                             bool append_end_of_document,
                                             const Tokenizer* tokenizer, Side side) {
  CONVENE_ASSIGN_OR_RETURN(ChatFormat format, LoadChatFormat(name_or_path));
  constexpr const char* kSides[] = {"", "chosen ", "rejected "};
  // A named format has no file.
  const bool is_named = std::holds_alternative<NamedTemplate>(format);
  std::string key =
      absl::StrCat("chat ", static_cast<int>(train_on), " ", kSides[static_cast<int>(side)],
                   is_named ? name_or_path : TextsOf(name_or_path));
  for (const NamedToken& token : tokenizer->named_tokens()) {
    if (!is_named) absl::StrAppend(&key, token.name, " ", token.text.size(), " ", token.text, "\n");
  }
  CONVENE_ASSIGN_OR_RETURN(
      std::unique_ptr<ChatEncoderFactory> made,
      ChatEncoderFactory::Make(
          std::move(format), tokenizer,
          {.train_on = train_on, .side = side, .append_end_of_document = append_end_of_document}));
  const std::shared_ptr<const ChatEncoderFactory> factory = std::move(made);
  return DocumentFormat{.key = std::move(key), .fields = RecordFields(), .new_encoder = [factory] {
                          return factory->New();
                        }};
}

}  // namespace convene::worker
