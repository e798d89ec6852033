#include "worker_runtime/inference/prompts.h"

#include <cstdint>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/chat_template.h"
#include "worker_runtime/data/chat/jinja/print.h"
#include "worker_runtime/data/chat/jinja/read_json.h"
#include "worker_runtime/data/chat/jinja/value.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

using jinja::Dict;
using jinja::Value;

constexpr char kGenerationConfig[] = "generation_config.json";
constexpr char kEnds[] = "eos_token_id";

// `path`: for messages.
absl::StatusOr<Dict> ObjectOf(const std::string& text, const std::string& path) {
  const auto value = jinja::ReadJson(text, jinja::LargeIntegers::kAsFloats);
  if (!value.ok()) return Annotate(value.status(), path);
  if (!value->is_dict()) return absl::InvalidArgumentError(path + " is no JSON object");
  return value->as_dict();
}

// A number, or a list of numbers; none where there is no such member.
absl::StatusOr<std::vector<int32_t>> EndsIn(const Dict& object, const std::string& path) {
  const Value* const end = object.Find(kEnds);
  if (end == nullptr || end->is_none()) return std::vector<int32_t>();
  const std::vector<Value> all = end->is_list() ? end->as_list().items : std::vector<Value>{*end};
  std::vector<int32_t> ids;
  for (const Value& id : all) {
    if (!id.is_int()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": \"", kEnds, "\" is neither a number nor a list of numbers"));
    }
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

// The message with one text in the place of a list of parts: OpenAI's clients write these, and most
// templates would print the list.
absl::StatusOr<Value> WithOneText(const Value& message) {
  const Value* const content = message.as_dict().Find("content");
  if (content == nullptr || !content->is_list()) return message;
  CONVENE_ASSIGN_OR_RETURN(std::string text, ContentOf(message));
  Dict made = message.as_dict();
  made.Set("content", Value::OfString(std::move(text)));
  return jinja::NewDict(std::move(made));
}

// A call of a message's "tool_calls" with the object that its arguments are, where they are the
// text of one: templates write them by tojson.
absl::StatusOr<Value> WithArguments(const Value& call) {
  const Value* const function = call.is_dict() ? call.as_dict().Find("function") : nullptr;
  const Value* const text =
      function != nullptr && function->is_dict() ? function->as_dict().Find("arguments") : nullptr;
  if (text == nullptr || !text->is_string()) return call;
  absl::StatusOr<Value> arguments = jinja::ReadJson(text->as_string());
  if (!arguments.ok() || !arguments->is_dict()) return call;
  Dict made = function->as_dict();
  made.Set("arguments", *std::move(arguments));
  Dict whole = call.as_dict();
  CONVENE_ASSIGN_OR_RETURN(Value object, jinja::NewDict(std::move(made)));
  whole.Set("function", std::move(object));
  return jinja::NewDict(std::move(whole));
}

absl::Status ReadArguments(Conversation* conversation) {
  for (Value& message : conversation->messages) {
    const Value* const calls = message.as_dict().Find("tool_calls");
    if (calls == nullptr || !calls->is_list()) continue;
    std::vector<Value> read;
    for (const Value& call : calls->as_list().items) {
      CONVENE_ASSIGN_OR_RETURN(read.emplace_back(), WithArguments(call));
    }
    Dict made = message.as_dict();
    CONVENE_ASSIGN_OR_RETURN(Value list, jinja::NewList(std::move(read)));
    made.Set("tool_calls", std::move(list));
    CONVENE_ASSIGN_OR_RETURN(message, jinja::NewDict(std::move(made)));
  }
  return absl::OkStatus();
}

// InvalidArgument: no conversation.
absl::StatusOr<Conversation> ConversationOf(absl::string_view record) {
  CONVENE_ASSIGN_OR_RETURN(ChatRecord read, ReadChatRecord(record));
  auto* const conversation = std::get_if<Conversation>(&read);
  if (conversation != nullptr) return std::move(*conversation);
  return absl::InvalidArgumentError("a line has \"prompt\" or \"messages\", and no completion");
}

}  // namespace

absl::StatusOr<PromptReader> PromptReader::Make(const Tokenizer& tokenizer, const std::string& chat,
                                                std::string system) {
  PromptReader reader(tokenizer);
  if (chat.empty()) return reader;
  CONVENE_ASSIGN_OR_RETURN(const std::string path, ResolveTemplate("auto", chat));
  CONVENE_ASSIGN_OR_RETURN(ChatFormat format, LoadChatFormat(path));
  reader.format_ = std::get<FolderTemplate>(std::move(format));  // a path is no format's name
  CONVENE_RETURN_IF_ERROR(SetNamedTokens(tokenizer.named_tokens(), &reader.format_->variables));
  reader.special_texts_.emplace(
      tokenizer, absl::StrCat(reader.format_->source, "\n", reader.format_->tool_use_source));
  reader.system_ = std::move(system);
  return reader;
}

void AddMessage(const std::string& role, const std::string& content, Conversation* conversation) {
  Dict message;
  std::string text;
  AppendAsUtf8(content, Replacement::kMaximalSubpart, &text);
  message.Set("role", Value::OfString(role));
  message.Set("content", Value::OfString(std::move(text)));
  conversation->messages.push_back(*jinja::NewDict(std::move(message)));
}

Conversation PromptReader::NewChat() const {
  Conversation conversation;
  if (!system_.empty()) AddMessage("system", system_, &conversation);
  return conversation;
}

absl::StatusOr<std::vector<int32_t>> PromptReader::Text(const std::string& text) {
  if (is_chat()) {
    Conversation conversation = NewChat();
    AddMessage("user", text, &conversation);
    return Chat(conversation);
  }
  std::vector<int32_t> ids(tokenizer_->prefix().begin(), tokenizer_->prefix().end());
  encoder_->Encode(text, &ids);
  return ids;
}

absl::StatusOr<std::vector<int32_t>> PromptReader::Line(absl::string_view line) {
  CONVENE_ASSIGN_OR_RETURN(const Value value,
                           jinja::ReadJson(line, jinja::LargeIntegers::kAsFloatsOnTop));
  const Value* const prompt = value.is_dict() ? value.as_dict().Find("prompt") : nullptr;
  if (prompt != nullptr && prompt->is_string()) return Text(prompt->as_string());
  if (!is_chat()) {
    return absl::InvalidArgumentError(
        "a line is a JSON object with a text \"prompt\"; a conversation (\"messages\") needs "
        "--chat");
  }
  CONVENE_ASSIGN_OR_RETURN(const Conversation conversation, ConversationOf(line));
  return Chat(conversation);
}

absl::StatusOr<std::vector<int32_t>> PromptReader::Messages(absl::string_view request) {
  CONVENE_ASSIGN_OR_RETURN(Conversation conversation, ConversationOf(request));
  CONVENE_RETURN_IF_ERROR(ReadArguments(&conversation));
  return Chat(conversation);
}

absl::StatusOr<std::string> PromptReader::Rendered(const Conversation& conversation,
                                                   bool before_answer) const {
  Dict variables = format_->variables;
  // As in training (data/chat/answer_spans.cc): transformers gives these always.
  variables.Set("tools", Value::OfNone());
  variables.Set("documents", Value::OfNone());
  for (const auto& [name, value] : conversation.variables.entries()) variables.Set(name, value);
  std::vector<Value> texts;
  for (const Value& message : conversation.messages) {
    CONVENE_ASSIGN_OR_RETURN(texts.emplace_back(), WithOneText(message));
  }
  CONVENE_ASSIGN_OR_RETURN(Value messages, jinja::NewList(std::move(texts)));
  variables.Set("messages", std::move(messages));
  variables.Set("add_generation_prompt", Value::OfBool(before_answer));
  const bool has_tools = variables.Find("tools")->Truth() && format_->tool_use.has_value();
  const jinja::ChatTemplate& chat_template =
      has_tools ? *format_->tool_use : format_->chat_template;
  CONVENE_ASSIGN_OR_RETURN(
      jinja::Rendered rendered,
      chat_template.Render(variables,
                           {.now = absl::ToCivilSecond(WallNow(), absl::LocalTimeZone())}));
  return std::move(rendered.text);
}

// The template writes the special tokens itself, those before a document too.
absl::StatusOr<std::vector<int32_t>> PromptReader::Chat(const Conversation& conversation) {
  Conversation unforged = conversation;
  CONVENE_ASSIGN_OR_RETURN(const bool is_broken, special_texts_->Break(&unforged));
  CONVENE_ASSIGN_OR_RETURN(std::string text, Rendered(unforged, /*before_answer=*/true));
  std::vector<size_t> cuts;
  std::vector<jinja::TextSpan> no_spans;
  if (is_broken) {
    CONVENE_ASSIGN_OR_RETURN(cuts, SpecialTexts::Mend(&text, &no_spans));
  }
  cuts.push_back(text.size());
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (const size_t end : cuts) {
    encoder_->Encode(absl::string_view(text).substr(begin, end - begin), &ids);
    begin = end;
  }
  return ids;
}

std::optional<int32_t> PromptReader::EndOfAnswer() {
  if (!is_chat()) return std::nullopt;
  constexpr char kAnswer[] = "an answer";
  Conversation chat = NewChat();
  AddMessage("user", "a question", &chat);
  AddMessage("assistant", kAnswer, &chat);
  const absl::StatusOr<std::string> text = Rendered(chat, /*before_answer=*/false);
  const size_t found = text.ok() ? text->rfind(kAnswer) : std::string::npos;
  if (found == std::string::npos) return std::nullopt;
  std::vector<int32_t> ids;
  encoder_->Encode(text->substr(found + sizeof(kAnswer) - 1), &ids);
  if (ids.empty() || tokenizer_->SpecialTextOf(ids[0]).empty()) return std::nullopt;
  return ids[0];
}

std::vector<int32_t> EndTokensOf(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const NamedToken& token : tokenizer.named_tokens()) {
    const std::optional<int32_t> id = tokenizer.SpecialId(token.text);
    if (token.name == "eos_token" && id.has_value()) ids.push_back(*id);
  }
  const std::optional<int32_t> end = tokenizer.end_of_document();
  if (end.has_value() && !absl::c_linear_search(ids, *end)) ids.push_back(*end);
  return ids;
}

absl::StatusOr<std::vector<int32_t>> EndTokensOf(const std::string& folder) {
  for (const char* name : {kGenerationConfig, "config.json"}) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!IsFile(path)) continue;
    CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    CONVENE_ASSIGN_OR_RETURN(const Dict object, ObjectOf(text, path));
    CONVENE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EndsIn(object, path));
    if (!ids.empty()) return ids;
  }
  return std::vector<int32_t>();
}

absl::StatusOr<std::string> WithEndToken(const std::string& text, std::optional<int32_t> own,
                                         int32_t end) {
  CONVENE_ASSIGN_OR_RETURN(Dict object, ObjectOf(text.empty() ? "{}" : text, kGenerationConfig));
  CONVENE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EndsIn(object, kGenerationConfig));
  if (ids.empty() && own.has_value()) ids.push_back(*own);
  if (absl::c_linear_search(ids, end)) return text;
  ids.push_back(end);
  std::vector<Value> all;
  for (const int32_t id : ids) all.push_back(Value::OfInt(id));
  CONVENE_ASSIGN_OR_RETURN(Value list, jinja::NewList(std::move(all)));
  object.Set(kEnds, std::move(list));
  CONVENE_ASSIGN_OR_RETURN(const Value whole, jinja::NewDict(std::move(object)));
  jinja::Budget budget(/*steps=*/int64_t{1} << 40, /*max_bytes=*/size_t{1} << 40);
  std::string made;
  CONVENE_RETURN_IF_ERROR(jinja::AppendJson(whole, {.indent = "  "}, &budget, &made));
  return made + "\n";
}

}  // namespace convene::worker
