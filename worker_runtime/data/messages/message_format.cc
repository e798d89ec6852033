#include "worker_runtime/data/messages/message_format.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/chat_encoder.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/data/chat/named_template.h"

namespace convene::worker {
namespace {

constexpr char kVersion[] = "messages/1";

// The files that LoadChatFormat may read for a path.
std::vector<std::string> FilesOf(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    return {path, ParentDirectory(path) + "/tokenizer_config.json"};
  }
  return {path + "/chat_template.jinja", path + "/tokenizer_config.json"};
}

absl::StatusOr<std::string> ContentKey(const std::string& chat_template) {
  const std::vector<std::string> names = NamedTemplateNames();
  if (std::find(names.begin(), names.end(), chat_template) != names.end()) return chat_template;
  std::string key;
  for (const std::string& path : FilesOf(chat_template)) {
    const absl::StatusOr<std::string> content = ReadFile(path);
    if (absl::IsNotFound(content.status())) {
      absl::StrAppend(&key, "-");
      continue;
    }
    CONVENE_RETURN_IF_ERROR(content.status());
    absl::StrAppend(&key, "/", absl::Hex(XXH3_64bits(content->data(), content->size())));
  }
  return key;
}

}  // namespace

absl::StatusOr<DocumentFormat> MakeMessageFormat(const std::string& chat_template, TrainOn train_on,
                                                 const Tokenizer* tokenizer) {
  CONVENE_ASSIGN_OR_RETURN(ChatFormat format, LoadChatFormat(chat_template));
  CONVENE_ASSIGN_OR_RETURN(const std::string key, ContentKey(chat_template));
  CONVENE_ASSIGN_OR_RETURN(
      std::unique_ptr<ChatEncoderFactory> made,
      ChatEncoderFactory::Make(std::move(format), tokenizer, {.train_on = train_on}));
  const std::shared_ptr<const ChatEncoderFactory> factory = std::move(made);
  return DocumentFormat{
      .key = absl::StrCat(kVersion, " ", key, " ", static_cast<int>(train_on)),
      .new_encoder = [factory]() -> absl::StatusOr<std::unique_ptr<DocumentEncoder>> {
        return factory->New();
      }};
}

}  // namespace convene::worker
