// Texts and conversations to the tokens that a model goes on with.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/special_texts.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// Not thread-safe.
class PromptReader {
 public:
  // `chat`: where the tokenizer lies, whose own chat template is taken; "": prompts are plain
  // texts. `system`: the first message of each conversation that a text makes; "": none. Errors:
  // ResolveTemplate's and LoadChatFormat's. Borrows the tokenizer.
  static absl::StatusOr<PromptReader> Make(const Tokenizer& tokenizer, const std::string& chat,
                                           std::string system);

  // A text with the tokens that the tokenizer puts before a document, and where it has the text of
  // a special token with that token: it may be what a template has written. Of a chat, a user's
  // message as the first of a conversation.
  absl::StatusOr<std::vector<int32_t>> Text(const std::string& text);

  // A line of a file: {"prompt": ...}, or {"messages": [...]}, which needs a template.
  // InvalidArgument: anything else; the template's errors.
  absl::StatusOr<std::vector<int32_t>> Line(absl::string_view line);
  // {"messages": [...]} as OpenAI's clients write it. Of a text that holds the arguments of a
  // message's "tool_calls" the template gets the object. Errors: as Line's. REQUIRES: is_chat().
  absl::StatusOr<std::vector<int32_t>> Messages(absl::string_view request);

  // A conversation that grows by messages. A content that is a list of parts becomes one text, and
  // what has the text of a special token (SpecialTexts) its letters. InvalidArgument: a part that
  // is no text; those of SpecialTexts. Errors else: the template's.
  absl::StatusOr<std::vector<int32_t>> Chat(const Conversation& conversation);
  // The beginning of one: the system's message, where there is one.
  Conversation NewChat() const;
  // The special token that the template writes right behind an answer, with which a model that was
  // trained by it ends its own; none where it writes none there, and for plain texts.
  std::optional<int32_t> EndOfAnswer();
  bool is_chat() const { return format_.has_value(); }

 private:
  explicit PromptReader(const Tokenizer& tokenizer)
      : tokenizer_(&tokenizer), encoder_(tokenizer.NewEncoder(SpecialText::kAsTokens)) {}

  absl::StatusOr<std::string> Rendered(const Conversation& conversation, bool before_answer) const;

  const Tokenizer* tokenizer_;
  std::unique_ptr<Encoder> encoder_;
  std::optional<FolderTemplate> format_;
  std::optional<SpecialTexts> special_texts_;  // where there is format_
  std::string system_;
};

// A message behind those of a conversation. Bytes that are no UTF-8 become U+FFFD.
void AddMessage(const std::string& role, const std::string& content, Conversation* conversation);

// The ids at which a model of this folder ends its answers: "eos_token_id" of
// generation_config.json, else of config.json; none where neither has one. InvalidArgument: a file
// that is no JSON object, or an id that is no number.
absl::StatusOr<std::vector<int32_t>> EndTokensOf(const std::string& folder);
// The text of a generation_config.json with `end` among its ends, behind those that are there.
// `text`: such a file's; "": there is none, and `own` (nullopt: none) is the model's only end. As
// it is where `end` is among them already; "" where nothing has to be written. InvalidArgument: as
// EndTokensOf.
absl::StatusOr<std::string> WithEndToken(const std::string& text, std::optional<int32_t> own,
                                         int32_t end);
// EndTokensOf where there are no such files: the tokenizer's eos_token, which ends an answer in a
// chat, and its end of a document.
std::vector<int32_t> EndTokensOf(const Tokenizer& tokenizer);

}  // namespace convene::worker
