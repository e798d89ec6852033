#include "worker_runtime/data/chat/named_template.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/jinja/print.h"

namespace convene::worker {
namespace {

using jinja::Value;

constexpr char kQwenSystem[] =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

struct Known {
  const char* name;
  NamedTemplate format;
  std::vector<std::string> specials;
};

// By NamedTemplate.
const std::vector<Known>& AllKnown() {
  static const auto* const all = new std::vector<Known>{
      {"llama3",
       NamedTemplate::kLlama3,
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {"chatml", NamedTemplate::kChatml, {"<|im_start|>", "<|im_end|>"}},
      {"qwen2.5", NamedTemplate::kQwen25, {"<|im_start|>", "<|im_end|>"}},
      {"mistral-v1", NamedTemplate::kMistralV1, {"<s>", "</s>"}},
      {"mistral-v3", NamedTemplate::kMistralV3, {"<s>", "</s>", "[INST]", "[/INST]"}},
      {"mistral-v7",
       NamedTemplate::kMistralV7,
       {"<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}},
      {"gemma", NamedTemplate::kGemma, {"<bos>", "<start_of_turn>", "<end_of_turn>"}}};
  return *all;
}

// `text` without white space around it, as Python's strip().
std::string Stripped(const std::string& text) { return std::string(jinja::Strip(text)); }

// Whether `dict` has something there; null, false and empty values are nothing.
bool Has(const jinja::Dict& dict, const char* key) {
  const Value* const value = dict.Find(key);
  return value != nullptr && value->Truth();
}

// {"name": ..., "`arguments_key`": ...} for each of the message's calls.
absl::StatusOr<std::vector<std::string>> CallsOf(const Value& message, const char* arguments_key) {
  std::vector<std::string> calls;
  const Value* const given = message.as_dict().Find("tool_calls");
  if (given == nullptr || !given->Truth()) return calls;
  if (!given->is_list()) return absl::InvalidArgumentError("'tool_calls' is no list");
  for (const Value& item : given->as_list().items) {
    const Value* call = item.is_dict() ? item.as_dict().Find("function") : nullptr;
    if (call == nullptr) call = &item;
    const Value* const name = call->is_dict() ? call->as_dict().Find("name") : nullptr;
    const Value* const arguments = call->is_dict() ? call->as_dict().Find("arguments") : nullptr;
    if (name == nullptr || !name->is_string() || arguments == nullptr) {
      return absl::InvalidArgumentError("a tool call without 'name' or 'arguments'");
    }
    jinja::Budget budget(int64_t{1} << 24, size_t{1} << 26);
    std::string text = "{\"name\": ";
    CONVENE_RETURN_IF_ERROR(AppendJson(*name, jinja::JsonStyle(), &budget, &text));
    absl::StrAppend(&text, ", \"", arguments_key, "\": ");
    // A string holds the arguments as JSON already.
    if (arguments->is_string()) {
      text += arguments->as_string();
    } else {
      CONVENE_RETURN_IF_ERROR(AppendJson(*arguments, jinja::JsonStyle(), &budget, &text));
    }
    calls.push_back(absl::StrCat(text, "}"));
  }
  return calls;
}

class Writer {
 public:
  Writer(NamedTemplate format, const Conversation& conversation, const std::vector<bool>& learned)
      : format_(format), conversation_(conversation), learned_(learned) {}

  absl::StatusOr<std::vector<Piece>> Write() {
    if (Has(conversation_.variables, "tools") || Has(conversation_.variables, "documents")) {
      return absl::InvalidArgumentError(
          "the formats that are known by name have no place for 'tools' and 'documents': use the "
          "model folder's own chat template");
    }
    WriteBegin();
    for (at_ = 0; at_ < conversation_.messages.size(); ++at_) {
      const absl::Status status = WriteMessage();
      if (!status.ok()) return Annotate(status, absl::StrCat("message ", at_ + 1));
    }
    return std::move(pieces_);
  }

 private:
  const Value& message() const { return conversation_.messages[at_]; }
  const std::string& role(size_t at) const { return RoleOf(conversation_.messages[at]); }
  bool is_mistral() const {
    return format_ == NamedTemplate::kMistralV1 || format_ == NamedTemplate::kMistralV3 ||
           format_ == NamedTemplate::kMistralV7;
  }

  void Special(const char* text, bool counted = false) {
    pieces_.push_back({/*is_special=*/true, text, counted});
  }
  void Text(std::string text, bool counted = false) {
    pieces_.push_back({/*is_special=*/false, std::move(text), counted});
  }

  void WriteBegin() {
    if (format_ == NamedTemplate::kLlama3) Special("<|begin_of_text|>");
    if (format_ == NamedTemplate::kGemma) Special("<bos>");
    if (is_mistral()) Special("<s>");
    if (format_ == NamedTemplate::kQwen25 && role(0) != "system") {
      ChatmlTurn("system", kQwenSystem, /*counted=*/false);
    }
  }

  absl::Status WriteMessage() {
    const std::string& speaker = role(at_);
    for (const char* const known : {"system", "user", "assistant", "tool"}) {
      if (speaker != known) continue;
      if (format_ == NamedTemplate::kLlama3) return WriteLlama3();
      if (format_ == NamedTemplate::kChatml || format_ == NamedTemplate::kQwen25) {
        return WriteChatml();
      }
      return is_mistral() ? WriteMistral() : WriteGemma();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the role is \"", Utf8(speaker, 40), "\": system, user, assistant and tool are known"));
  }

  absl::Status WriteLlama3() {
    CONVENE_ASSIGN_OR_RETURN(std::string content, ContentOf(message()));
    CONVENE_ASSIGN_OR_RETURN(const auto calls, CallsOf(message(), "parameters"));
    if (calls.size() > 1) return absl::InvalidArgumentError("Llama 3 has one tool call a turn");
    if (!calls.empty()) content = calls[0];
    Special("<|start_header_id|>");
    Text(role(at_) == "tool" ? "ipython" : role(at_));
    Special("<|end_header_id|>");
    Text("\n\n");
    Text(Stripped(content), learned_[at_]);
    Special("<|eot_id|>", learned_[at_]);
    return absl::OkStatus();
  }

  void ChatmlTurn(const std::string& speaker, std::string content, bool counted) {
    Special("<|im_start|>");
    Text(speaker + "\n");
    Text(std::move(content), counted);
    Special("<|im_end|>", counted);
    Text("\n");
  }

  absl::Status WriteChatml() {
    CONVENE_ASSIGN_OR_RETURN(std::string content, ContentOf(message()));
    if (role(at_) == "tool") {
      // Results in a row share one turn of the user.
      std::vector<std::string> results;
      for (;; ++at_) {
        CONVENE_ASSIGN_OR_RETURN(const std::string result, ContentOf(message()));
        results.push_back(absl::StrCat("<tool_response>\n", result, "\n</tool_response>"));
        if (at_ + 1 >= conversation_.messages.size() || role(at_ + 1) != "tool") break;
      }
      ChatmlTurn("user", absl::StrJoin(results, "\n"), /*counted=*/false);
      return absl::OkStatus();
    }
    CONVENE_ASSIGN_OR_RETURN(const auto calls, CallsOf(message(), "arguments"));
    for (const std::string& call : calls) {
      absl::StrAppend(&content, content.empty() ? "" : "\n", "<tool_call>\n", call,
                      "\n</tool_call>");
    }
    ChatmlTurn(role(at_), std::move(content), learned_[at_]);
    return absl::OkStatus();
  }

  // The system's text is part of a user's turn, here or further on.
  absl::Status KeepSystem() {
    if (at_ > 0)
      return absl::InvalidArgumentError("this format has a system message at the start alone");
    CONVENE_ASSIGN_OR_RETURN(const std::string content, ContentOf(message()));
    system_ = content + "\n\n";
    if (conversation_.messages.size() == 1) {
      return absl::InvalidArgumentError("this format has no system message without a user's");
    }
    return absl::OkStatus();
  }

  // User and assistant take turns, beginning with the user.
  absl::Status CheckTurns() const {
    const bool first = at_ == 0 || role(at_ - 1) == "system";
    const bool user = role(at_) == "user";
    if (role(at_) == "tool" || Has(message().as_dict(), "tool_calls")) {
      return absl::InvalidArgumentError(
          "this format is known by name without tool calls: use the model folder's own chat "
          "template");
    }
    if (first ? user : role(at_) != role(at_ - 1)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "in this format user and assistant take turns, beginning with the user");
  }

  // Whether this message is the one that takes the system's text.
  bool TakesSystem() const {
    if (format_ != NamedTemplate::kMistralV3) return true;  // the first user
    for (size_t later = at_ + 1; later < conversation_.messages.size(); ++later) {
      if (role(later) == "user") return false;
    }
    return true;  // the last user
  }

  std::string TakeSystem() { return TakesSystem() ? std::exchange(system_, "") : ""; }

  absl::Status WriteMistral() {
    const bool v1 = format_ == NamedTemplate::kMistralV1;
    CONVENE_ASSIGN_OR_RETURN(std::string content, ContentOf(message()));
    if (role(at_) == "system") {
      if (format_ != NamedTemplate::kMistralV7) return KeepSystem();
      Special("[SYSTEM_PROMPT]");
      Text(std::move(content));
      Special("[/SYSTEM_PROMPT]");
      return absl::OkStatus();
    }
    CONVENE_RETURN_IF_ERROR(CheckTurns());
    if (role(at_) == "assistant") {
      // From version 2 on, spaces at the end go.
      Text(v1 ? content : std::string(jinja::StripRight(content, " ")), learned_[at_]);
      Special("</s>", learned_[at_]);
    } else if (v1) {
      Text(absl::StrCat("[INST] ", TakeSystem(), content, " [/INST]"));
    } else {
      Special("[INST]");
      Text(TakeSystem() + content);
      Special("[/INST]");
    }
    return absl::OkStatus();
  }

  absl::Status WriteGemma() {
    if (role(at_) == "system") return KeepSystem();
    CONVENE_RETURN_IF_ERROR(CheckTurns());
    CONVENE_ASSIGN_OR_RETURN(const std::string content, ContentOf(message()));
    Special("<start_of_turn>");
    Text(role(at_) == "assistant" ? "model\n" : "user\n");
    Text(TakeSystem() + Stripped(content), learned_[at_]);
    Special("<end_of_turn>", learned_[at_]);
    Text("\n");
    return absl::OkStatus();
  }

  const NamedTemplate format_;
  const Conversation& conversation_;
  const std::vector<bool>& learned_;
  size_t at_ = 0;
  std::string system_;
  std::vector<Piece> pieces_;
};

}  // namespace

std::vector<std::string> NamedTemplateNames() {
  std::vector<std::string> names;
  for (const Known& known : AllKnown()) names.push_back(known.name);
  return names;
}

absl::StatusOr<NamedTemplate> FindNamedTemplate(const std::string& name) {
  for (const Known& known : AllKnown()) {
    if (name == known.name) return known.format;
  }
  return absl::InvalidArgumentError(absl::StrCat("no chat template is known by the name '",
                                                 Utf8(name, 80), "': there are ",
                                                 absl::StrJoin(NamedTemplateNames(), ", ")));
}

std::vector<std::string> SpecialsOf(NamedTemplate format) {
  return AllKnown()[static_cast<size_t>(format)].specials;
}

bool IsSpecialOfAFormat(absl::string_view text) {
  return absl::c_any_of(
      AllKnown(), [&](const Known& known) { return absl::c_linear_search(known.specials, text); });
}

absl::StatusOr<std::vector<Piece>> PiecesOf(NamedTemplate format, const Conversation& conversation,
                                            const std::vector<bool>& learned) {
  return Writer(format, conversation, learned).Write();
}

}  // namespace convene::worker
