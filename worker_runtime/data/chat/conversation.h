// PURE. One line of instruction data as a conversation.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/chat/jinja/value.h"

namespace convene::worker {

enum class TrainOn {
  kAnswers,  // what the assistant says, with the token that ends its turn
  kLast,     // the last answer alone
  kAll       // every token
};

struct Conversation {
  // Dicts with `role` (a string) and, as a rule, `content`. ShareGPT's spelling is made into this;
  // thoughts under one of transformers' names for them (reasoning_content, thinking, reasoning)
  // stand under the first two.
  std::vector<jinja::Value> messages;
  // One for each message: an answer that is to be learned. False with `"weight": 0` and, where the
  // record has a prompt and a completion, in the prompt.
  std::vector<bool> is_answer;
  // `tools`, `documents` and what `chat_template_kwargs` held, for the template.
  jinja::Dict variables;
};

struct PromptAndCompletion {
  std::string prompt;
  std::string completion;
};

// The answer that is read of a record.
enum class Side {
  kOnly,     // that of plain instruction data
  kChosen,   // of a pair of answers the better one
  kRejected  // the other one
};

using ChatRecord = std::variant<Conversation, PromptAndCompletion>;

// `record`: a JSON object with
//   messages: [{"role": ..., "content": ...}, ...], the roles and further keys are the template's
//   conversations: [{"from": "human", "value": ...}, ...]; human, gpt, system, tool, observation
//   and
//     function_response are known; either list may have the other's spelling
//   prompt and completion: two strings, or two lists of messages
//   of a pair's side, in the completion's place: chosen or rejected; without a prompt a whole
//     conversation, or a text
//   tools: a list, or a string that holds it as JSON; documents; chat_template_kwargs: a dict
// Of other keys nothing is read, and a number beyond 64 bits may stand there. InvalidArgument:
// anything else, or an empty conversation; says what and which message.
absl::StatusOr<ChatRecord> ReadChatRecord(absl::string_view record, Side side = Side::kOnly);

// The keys that ReadChatRecord looks for.
std::vector<std::string> RecordFields();

// The answers to learn: conversation.is_answer, or the last of them alone.
std::vector<bool> AnswersToLearn(const Conversation& conversation, TrainOn train_on);

// The role of a message of a conversation.
const std::string& RoleOf(const jinja::Value& message);

// The content of a message as text: the string, the texts of a list of parts one behind the other,
// or nothing. InvalidArgument: parts that are no text.
absl::StatusOr<std::string> ContentOf(const jinja::Value& message);

}  // namespace convene::worker
