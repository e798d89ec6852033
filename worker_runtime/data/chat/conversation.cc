#include "worker_runtime/data/chat/conversation.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/chat/jinja/read_json.h"

namespace convene::worker {
namespace {

using jinja::Dict;
using jinja::Value;

constexpr std::pair<const char*, const char*> kSpeakers[] = {
    {"human", "user"},       {"user", "user"},
    {"gpt", "assistant"},    {"assistant", "assistant"},
    {"model", "assistant"},  {"bot", "assistant"},
    {"system", "system"},    {"tool", "tool"},
    {"observation", "tool"}, {"function_response", "tool"}};

// The key's value; nullptr: absent or null.
const Value* Given(const Dict& dict, const char* key) {
  const Value* const value = dict.Find(key);
  return value == nullptr || value->is_none() ? nullptr : value;
}

// {"from": "human", "value": "..."} as {"role": "user", "content": "..."}; other keys stay.
absl::StatusOr<Value> FromShareGpt(const Dict& message) {
  const Value* const speaker = message.Find("from");
  if (!speaker->is_string()) return absl::InvalidArgumentError("'from' is no string");
  std::string role;
  for (const auto& [name, known] : kSpeakers) {
    if (speaker->as_string() == name) role = known;
  }
  if (role.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'from' is \"", Utf8(speaker->as_string(), 40),
                     "\": human, gpt, system, tool, observation and function_response are known"));
  }
  Dict made;
  made.Set("role", Value::OfString(role));
  for (const auto& [key, value] : message.entries()) {
    if (*key == "from") continue;
    made.Set(*key == "value" ? "content" : absl::string_view(*key), value);
  }
  return NewDict(std::move(made));
}

// With the message's thoughts under each name by which templates read them, as transformers gives
// them, and in its order.
absl::StatusOr<Value> WithThoughts(const Value& message) {
  const Dict& dict = message.as_dict();
  const Value* thoughts = nullptr;
  for (const char* const name : {"reasoning", "thinking", "reasoning_content"}) {
    if (const Value* const given = Given(dict, name)) thoughts = given;
  }
  if (thoughts == nullptr) return message;
  Dict made;
  made.Set("thinking", *thoughts);
  for (const auto& [key, value] : dict.entries()) made.Set(key, value);
  made.Set("reasoning_content", *thoughts);
  return NewDict(std::move(made));
}

absl::StatusOr<Value> Normalised(const Value& message) {
  if (!message.is_dict()) return absl::InvalidArgumentError("it is no object");
  const Dict& dict = message.as_dict();
  const Value* const role = Given(dict, "role");
  if (role == nullptr && dict.Find("from") != nullptr) {
    CONVENE_ASSIGN_OR_RETURN(const Value made, FromShareGpt(dict));
    return WithThoughts(made);
  }
  if (role == nullptr || !role->is_string()) {
    return absl::InvalidArgumentError("it has no string 'role' (or 'from')");
  }
  return WithThoughts(message);
}

bool HasWeight(const Value& message) {
  const Value* const weight = Given(message.as_dict(), "weight");
  return weight == nullptr || weight->Truth();
}

// Adds the messages of `list`; its answers are to be learned if `learned`.
absl::Status AddMessages(const Value& list, const char* name, bool learned,
                         Conversation* conversation) {
  if (!list.is_list()) return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no list"));
  for (size_t i = 0; i < list.as_list().items.size(); ++i) {
    absl::StatusOr<Value> message = Normalised(list.as_list().items[i]);
    if (!message.ok()) {
      return Annotate(message.status(), absl::StrCat("message ", i + 1, " of '", name, "'"));
    }
    conversation->is_answer.push_back(learned && RoleOf(*message) == "assistant" &&
                                      HasWeight(*message));
    conversation->messages.push_back(*std::move(message));
  }
  return absl::OkStatus();
}

absl::Status AddVariables(const Dict& record, Conversation* conversation) {
  if (const Value* tools = Given(record, "tools")) {
    absl::StatusOr<Value> parsed = *tools;
    if (tools->is_string()) {
      parsed = jinja::ReadJson(tools->as_string());
      if (!parsed.ok()) return Annotate(parsed.status(), "the string 'tools'");
    }
    if (!parsed->is_list() && !parsed->is_none()) {
      return absl::InvalidArgumentError("'tools' is no list, and no string that holds one");
    }
    // An empty list is to a template what no list is.
    if (parsed->Truth()) conversation->variables.Set("tools", *std::move(parsed));
  }
  if (const Value* const documents = Given(record, "documents")) {
    conversation->variables.Set("documents", *documents);
  }
  if (const Value* const more = Given(record, "chat_template_kwargs")) {
    if (!more->is_dict()) {
      return absl::InvalidArgumentError("'chat_template_kwargs' is no object");
    }
    for (const auto& [key, value] : more->as_dict().entries()) {
      if (*key == "messages" || *key == "add_generation_prompt") {
        return absl::InvalidArgumentError(
            absl::StrCat("'chat_template_kwargs' may not set '", *key, "'"));
      }
      conversation->variables.Set(key, value);
    }
  }
  return absl::OkStatus();
}

// Of a pair of answers, of which none may be empty: a model would learn to say nothing, or that
// saying nothing is worse than anything.
absl::Status CheckAnswer(const Value& answer, const char* key) {
  bool has_text = answer.is_string() && !answer.as_string().empty();
  for (size_t i = 0; answer.is_list() && i < answer.as_list().items.size(); ++i) {
    CONVENE_ASSIGN_OR_RETURN(const Value message, Normalised(answer.as_list().items[i]));
    if (RoleOf(message) != "assistant") continue;
    CONVENE_ASSIGN_OR_RETURN(const std::string content, ContentOf(message));
    has_text = !content.empty() || Given(message.as_dict(), "tool_calls") != nullptr;  // the last's
  }
  if (has_text) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", key, "' has no answer: give it a text, or leave the pair out"));
}

const char* KeyOf(Side side) {
  if (side == Side::kOnly) return "completion";
  return side == Side::kChosen ? "chosen" : "rejected";
}

}  // namespace

absl::StatusOr<ChatRecord> ReadChatRecord(absl::string_view record, Side side) {
  CONVENE_ASSIGN_OR_RETURN(const Value value,
                           jinja::ReadJson(record, jinja::LargeIntegers::kAsFloatsOnTop));
  if (!value.is_dict()) return absl::InvalidArgumentError("the record is no JSON object");
  const Dict& dict = value.as_dict();
  const Value* const prompt = Given(dict, "prompt");
  const char* const key = KeyOf(side);
  const Value* const completion = Given(dict, key);
  Conversation conversation;
  if (side != Side::kOnly) {
    if (completion == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the record has no '", key,
                       "': of a pair of answers it has 'chosen' and "
                       "'rejected', and before them a 'prompt' or not"));
    }
    if (completion->is_string() && (prompt == nullptr || prompt->is_string())) {
      CONVENE_RETURN_IF_ERROR(CheckAnswer(*completion, key));
      return PromptAndCompletion{prompt == nullptr ? "" : prompt->as_string(),
                                 completion->as_string()};
    }
    if (prompt != nullptr) {
      CONVENE_RETURN_IF_ERROR(AddMessages(*prompt, "prompt", false, &conversation));
    }
    CONVENE_RETURN_IF_ERROR(AddMessages(*completion, key, true, &conversation));
    CONVENE_RETURN_IF_ERROR(CheckAnswer(*completion, key));
  } else if (const Value* const messages = Given(dict, "messages")) {
    CONVENE_RETURN_IF_ERROR(AddMessages(*messages, "messages", true, &conversation));
  } else if (const Value* const turns = Given(dict, "conversations")) {
    CONVENE_RETURN_IF_ERROR(AddMessages(*turns, "conversations", true, &conversation));
  } else if (prompt != nullptr && completion != nullptr) {
    if (prompt->is_string() && completion->is_string()) {
      return PromptAndCompletion{prompt->as_string(), completion->as_string()};
    }
    CONVENE_RETURN_IF_ERROR(AddMessages(*prompt, "prompt", false, &conversation));
    CONVENE_RETURN_IF_ERROR(AddMessages(*completion, "completion", true, &conversation));
  } else {
    return absl::InvalidArgumentError(
        "the record has neither 'messages' nor 'conversations' nor 'prompt' and 'completion'");
  }
  if (conversation.messages.empty()) {
    return absl::InvalidArgumentError("the conversation has no messages");
  }
  CONVENE_RETURN_IF_ERROR(AddVariables(dict, &conversation));
  return conversation;
}

std::vector<std::string> RecordFields() {
  return {"messages", "conversations", "prompt",    "completion",          "chosen",
          "rejected", "tools",         "documents", "chat_template_kwargs"};
}

std::vector<bool> AnswersToLearn(const Conversation& conversation, TrainOn train_on) {
  std::vector<bool> answers = conversation.is_answer;
  if (train_on != TrainOn::kLast) return answers;
  bool seen = false;
  for (size_t i = answers.size(); i-- > 0;) {
    if (seen) answers[i] = false;
    seen = seen || answers[i];
  }
  return answers;
}

const std::string& RoleOf(const Value& message) {
  return message.as_dict().Find("role")->as_string();
}

absl::StatusOr<std::string> ContentOf(const Value& message) {
  const Value* const content = Given(message.as_dict(), "content");
  if (content == nullptr) return std::string();
  if (content->is_string()) return content->as_string();
  if (!content->is_list()) {
    return absl::InvalidArgumentError("a message's content is no string and no list of parts");
  }
  std::string text;
  for (const Value& part : content->as_list().items) {
    const Value* const piece = part.is_dict() ? Given(part.as_dict(), "text") : nullptr;
    if (piece == nullptr || !piece->is_string()) {
      return absl::InvalidArgumentError(
          "a part of a message's content is no text: there are no images or sounds here");
    }
    text += piece->as_string();
  }
  return text;
}

}  // namespace convene::worker
