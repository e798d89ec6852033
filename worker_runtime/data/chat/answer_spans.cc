#include "worker_runtime/data/chat/answer_spans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/chat/jinja/budget.h"
#include "worker_runtime/data/chat/jinja/characters.h"

namespace convene::worker {
namespace {

using jinja::Dict;
using jinja::Rendered;
using jinja::TextSpan;
using jinja::Value;

class Renderer {
 public:
  Renderer(const jinja::ChatTemplate& chat_template, const Dict& variables,
           const Conversation& conversation, const jinja::RenderOptions& options)
      : template_(chat_template),
        variables_(variables),
        conversation_(conversation),
        options_(options) {
    // transformers gives these always.
    variables_.Set("tools", Value::OfNone());
    variables_.Set("documents", Value::OfNone());
    for (const auto& [key, value] : conversation.variables.entries()) variables_.Set(key, value);
  }

  // The text of the first `count` messages.
  absl::StatusOr<Rendered> Render(size_t count, bool generation_prompt) {
    return Render(MessagesBefore(count), generation_prompt);
  }

  // The text of the first `count` messages and, behind them, one of the assistant's that says
  // `answer`; in the form of the message that stands there.
  absl::StatusOr<Rendered> RenderWith(size_t count, const char* answer) {
    Dict message;
    Value content = Value::OfString(std::string(answer));
    const Value* const given = conversation_.messages[count].as_dict().Find("content");
    if (given != nullptr && given->is_list()) {
      Dict part;
      part.Set("type", Value::OfString(std::string("text")));
      part.Set("text", std::move(content));
      CONVENE_ASSIGN_OR_RETURN(Value only, jinja::NewDict(std::move(part)));
      CONVENE_ASSIGN_OR_RETURN(content, jinja::NewList({std::move(only)}));
    }
    message.Set("role", Value::OfString(RoleOf(conversation_.messages[count])));
    message.Set("content", std::move(content));
    std::vector<Value> messages = MessagesBefore(count);
    CONVENE_ASSIGN_OR_RETURN(Value last, jinja::NewDict(std::move(message)));
    messages.push_back(std::move(last));
    return Render(std::move(messages), /*generation_prompt=*/false);
  }

 private:
  std::vector<Value> MessagesBefore(size_t count) const {
    return {conversation_.messages.begin(), conversation_.messages.begin() + count};
  }

  absl::StatusOr<Rendered> Render(std::vector<Value> messages, bool generation_prompt) {
    options_.max_steps -= static_cast<int64_t>(messages.size());
    CONVENE_ASSIGN_OR_RETURN(Value list, jinja::NewList(std::move(messages)));
    variables_.Set("messages", std::move(list));
    variables_.Set("add_generation_prompt", Value::OfBool(generation_prompt));
    CONVENE_RETURN_IF_ERROR(jinja::Budget(options_.max_steps, options_.max_bytes).Charge(1));
    CONVENE_ASSIGN_OR_RETURN(Rendered rendered, template_.Render(variables_, options_));
    options_.max_steps = rendered.steps_left;
    return rendered;
  }

  const jinja::ChatTemplate& template_;
  Dict variables_;
  const Conversation& conversation_;
  jinja::RenderOptions options_;  // with the steps that are left for the next rendering
};

// The last bytes of a text, for messages.
std::string TailOf(absl::string_view text) {
  const size_t begin = text.size() > 40 ? text.size() - 40 : 0;
  return Utf8(text.substr(begin), 60);
}

absl::Status TooLong(const absl::Status& status, size_t messages, size_t answers) {
  if (!absl::IsResourceExhausted(status)) return status;
  return Annotate(
      status, absl::StrCat("the conversation of ", messages, " messages is rendered up to each of ",
                           answers,
                           " answers, and that takes too long (shorten it, or give a template with "
                           "{% generation %} around what the assistant says, which is rendered "
                           "once)"));
}

// How long the begin is that both have.
size_t CommonBytes(absl::string_view a, absl::string_view b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

absl::Status NotGrowing(size_t message, absl::string_view expected, absl::string_view whole) {
  const size_t common = CommonBytes(expected, whole);
  return absl::FailedPreconditionError(
      absl::StrCat("the chat template does not only add to its text: at message ", message + 1,
                   " the text up to there goes on differently in the whole conversation, behind \"",
                   TailOf(expected.substr(0, common)),
                   "\". Train on the last answer alone, or give a template with {% generation %} "
                   "around what the "
                   "assistant says"));
}

// Without the white space behind the special token that ends the turn.
size_t EndOfTurn(absl::string_view text, size_t begin, size_t end,
                 const std::vector<std::string>& specials) {
  const absl::string_view answer = jinja::StripRight(text.substr(begin, end - begin));
  const bool at_special =
      std::any_of(specials.begin(), specials.end(), [&](const std::string& special) {
        return !special.empty() && absl::EndsWith(answer, special);
      });
  return at_special ? begin + answer.size() : end;
}

// Of the spans that the template marked, those of the answers that are learned.
absl::Status ChooseSpans(const Conversation& conversation, const std::vector<bool>& learned,
                         std::vector<TextSpan>* spans) {
  std::vector<bool> chosen;
  for (size_t i = 0; i < learned.size(); ++i) {
    if (RoleOf(conversation.messages[i]) == "assistant") chosen.push_back(learned[i]);
  }
  if (std::all_of(chosen.begin(), chosen.end(), [](bool is) { return is; })) {
    return absl::OkStatus();
  }
  if (chosen.size() != spans->size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "some of the conversation's answers are not to be learned, and the chat template marks ",
        spans->size(), " answers where there are ", chosen.size(),
        ": which of them are meant cannot be told"));
  }
  std::vector<TextSpan> kept;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) kept.push_back((*spans)[i]);
  }
  *spans = std::move(kept);
  return absl::OkStatus();
}

// How many bytes of the answer at `message` are a header that the template writes before every
// answer. `before`: the text up to the message, with the generation prompt; `with`: and the
// message. `prompt`: the generation prompt as it stood before an earlier answer, or empty.
absl::StatusOr<size_t> HeaderBytes(Renderer* renderer, size_t message, absl::string_view before,
                                   absl::string_view with, std::string* prompt) {
  // The generation prompt is the header, which saves a rendering.
  if (!prompt->empty() && absl::EndsWith(before, *prompt)) return 0;
  CONVENE_ASSIGN_OR_RETURN(const Rendered without,
                           renderer->Render(message, /*generation_prompt=*/false));
  if (without.text != before) {
    if (absl::StartsWith(before, without.text)) {
      *prompt = std::string(before.substr(without.text.size()));
    }
    return 0;
  }
  constexpr char kAnswer[] = "Other0answer1here";
  CONVENE_ASSIGN_OR_RETURN(const Rendered other, renderer->RenderWith(message, kAnswer));
  const size_t found = other.text.find(kAnswer, before.size());
  if (found == std::string::npos || !absl::StartsWith(other.text, before)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the chat template writes no generation prompt for message ", message + 1,
        ", and does not show otherwise where the header ends and the answer begins: give a "
        "template with {% generation %} around what the assistant says"));
  }
  const absl::string_view header =
      absl::string_view(other.text).substr(before.size(), found - before.size());
  const absl::string_view answer = with.substr(before.size());
  size_t common = CommonBytes(header, answer);
  // Two characters may differ in their last bytes alone.
  while (common > 0 && common < answer.size() && (answer[common] & 0xC0) == 0x80) --common;
  return common;
}

// Adds the spans of the answers in `learned` to `whole`, by what each adds to the text.
absl::Status AddAnswers(Renderer* renderer, const std::vector<bool>& learned,
                        const std::vector<std::string>& specials, Rendered* whole) {
  const size_t count = learned.size();
  std::string prompt;
  for (size_t i = 0; i < count; ++i) {
    if (!learned[i]) continue;
    CONVENE_ASSIGN_OR_RETURN(const Rendered before,
                             renderer->Render(i, /*generation_prompt=*/true));
    if (!absl::StartsWith(whole->text, before.text)) {
      return NotGrowing(i, before.text, whole->text);
    }
    size_t end = whole->text.size();
    if (i + 1 < count) {
      CONVENE_ASSIGN_OR_RETURN(const Rendered upto,
                               renderer->Render(i + 1, /*generation_prompt=*/false));
      if (!absl::StartsWith(whole->text, upto.text) || upto.text.size() < before.text.size()) {
        return NotGrowing(i, upto.text, whole->text);
      }
      end = upto.text.size();
    }
    const absl::string_view with = absl::string_view(whole->text).substr(0, end);
    CONVENE_ASSIGN_OR_RETURN(const size_t header,
                             HeaderBytes(renderer, i, before.text, with, &prompt));
    const size_t begin = before.text.size() + header;
    whole->generated.push_back({begin, EndOfTurn(whole->text, begin, end, specials)});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rendered> RenderAnswers(const jinja::ChatTemplate& chat_template,
                                       const Dict& variables, const Conversation& conversation,
                                       const std::vector<bool>& learned,
                                       const std::vector<std::string>& specials,
                                       const jinja::RenderOptions& options) {
  Renderer renderer(chat_template, variables, conversation, options);
  const size_t count = conversation.messages.size();
  CONVENE_ASSIGN_OR_RETURN(Rendered whole, renderer.Render(count, /*generation_prompt=*/false));
  if (chat_template.has_generation()) {
    CONVENE_RETURN_IF_ERROR(ChooseSpans(conversation, learned, &whole.generated));
    return whole;
  }
  const absl::Status added = AddAnswers(&renderer, learned, specials, &whole);
  if (!added.ok()) return TooLong(added, count, std::count(learned.begin(), learned.end(), true));
  return whole;
}

absl::StatusOr<Rendered> RenderWhole(const jinja::ChatTemplate& chat_template,
                                     const Dict& variables, const Conversation& conversation,
                                     const jinja::RenderOptions& options) {
  return Renderer(chat_template, variables, conversation, options)
      .Render(conversation.messages.size(), /*generation_prompt=*/false);
}

}  // namespace convene::worker
