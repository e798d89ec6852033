#include "worker_runtime/inference/generate_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/flag_reader.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/jinja/print.h"
#include "worker_runtime/inference/generate_flags.h"
#include "worker_runtime/inference/generator.h"
#include "worker_runtime/inference/open_model.h"
#include "worker_runtime/inference/prompts.h"
#include "worker_runtime/inference/serve.h"
#include "worker_runtime/inference/text_stream.h"

namespace convene::worker {
namespace {

using Tokens = std::vector<int32_t>;

struct Answer {
  std::string text;
  int tokens = 0;
  const char* end = "length";
};

// A text goes on as it comes, which may be piece by piece.
using ShowText = absl::FunctionRef<absl::Status(int prompt, const std::string& text)>;
using ShowEnd = absl::FunctionRef<absl::Status(int prompt, const Answer& answer)>;

// Answers to texts, all by the same flags.
class Answers {
 public:
  Answers(const GenerateFlags& flags, const OpenedModel& opened, LanguageModel& model)
      : flags_(flags), opened_(opened), model_(model) {}

  // `end` is called once for each prompt, when its answer is whole.
  absl::Status Give(const std::vector<Tokens>& prompts, ShowText show, ShowEnd end) {
    std::vector<TextStream> streams(prompts.size(), TextStream(*opened_.tokenizer, flags_.stop));
    std::vector<Answer> answers(prompts.size());
    const Tokens& end_tokens = opened_.end_tokens;
    const GenerateOptions options = {.sampling = flags_.sampling,
                                     .max_new_tokens = flags_.max_new_tokens,
                                     .end_tokens = flags_.ignore_end ? Tokens() : end_tokens,
                                     .first_sequence = prompts_};
    prompts_ += prompts.size();
    return Generate(model_, prompts, options,
                    [&](int prompt, int32_t token, SequenceEnd why) -> absl::StatusOr<bool> {
                      Answer& answer = answers[prompt];
                      TextStream& stream = streams[prompt];
                      ++answer.tokens;
                      std::string text = why == SequenceEnd::kEndToken ? "" : stream.Add(token);
                      if (why != SequenceEnd::kNotYet) text += stream.Finish();
                      answer.text += text;
                      CONVENE_RETURN_IF_ERROR(show(prompt, text));
                      if (why == SequenceEnd::kNotYet && !stream.is_stopped()) return true;
                      if (why == SequenceEnd::kEndToken) answer.end = "end_token";
                      if (stream.is_stopped()) answer.end = "stop_text";
                      CONVENE_RETURN_IF_ERROR(end(prompt, answer));
                      return false;
                    });
  }

 private:
  const GenerateFlags& flags_;
  const OpenedModel& opened_;
  LanguageModel& model_;
  uint64_t prompts_ = 0;  // so far: each has a number of its own
};

absl::Status Print(const std::string& text) { return WriteAll(STDOUT_FILENO, text, "stdout"); }
absl::Status PrintText(int /*prompt*/, const std::string& text) { return Print(text); }

absl::StatusOr<std::string> JsonLine(const Answer& answer) {
  using jinja::Value;
  jinja::Dict line;
  line.Set("text", Value::OfString(answer.text));
  line.Set("tokens", Value::OfInt(answer.tokens));
  line.Set("end", Value::OfString(std::string(answer.end)));
  CONVENE_ASSIGN_OR_RETURN(const Value value, jinja::NewDict(std::move(line)));
  jinja::Budget budget(/*steps=*/int64_t{1} << 40, /*max_bytes=*/size_t{1} << 40);
  std::string text;
  CONVENE_RETURN_IF_ERROR(jinja::AppendJson(value, {}, &budget, &text));
  return text + "\n";
}

absl::StatusOr<std::vector<Tokens>> ReadPrompts(const std::string& path, PromptReader& reader) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  std::vector<Tokens> prompts;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    auto tokens = reader.Line(line);
    if (!tokens.ok()) return Annotate(tokens.status(), absl::StrCat(path, ", line ", number));
    prompts.push_back(*std::move(tokens));
  }
  if (prompts.empty()) return absl::InvalidArgumentError(path + " has no prompts");
  return prompts;
}

// The longest prompt and its answer.
int ContextFor(const GenerateFlags& flags, const std::vector<Tokens>& prompts) {
  if (flags.model.context > 0) return flags.model.context;
  size_t longest = 1;
  for (const Tokens& prompt : prompts) longest = std::max(longest, prompt.size());
  return static_cast<int>(longest) + flags.max_new_tokens;
}

absl::Status AnswerFile(const GenerateFlags& flags, OpenedModel& opened, PromptReader& reader) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Tokens> prompts, ReadPrompts(flags.prompts, reader));
  UniqueFd file;
  if (!flags.output.empty()) {
    CONVENE_ASSIGN_OR_RETURN(file, OpenFile(flags.output, O_WRONLY | O_CREAT | O_TRUNC));
  }
  const int batch = std::min(flags.batch_size, static_cast<int>(prompts.size()));
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(batch, ContextFor(flags, prompts)));
  std::vector<std::optional<Answer>> answers(prompts.size());
  size_t written = 0;
  const auto keep = [&](int prompt, const Answer& answer) -> absl::Status {
    answers[prompt] = answer;
    for (; written < answers.size() && answers[written].has_value(); ++written) {
      CONVENE_ASSIGN_OR_RETURN(const std::string line, JsonLine(*answers[written]));
      CONVENE_RETURN_IF_ERROR(file.get() >= 0 ? WriteAll(file.get(), line, flags.output)
                                              : Print(line));
      answers[written]->text.clear();
    }
    return absl::OkStatus();
  };
  return Answers(flags, opened, *model)
      .Give(
          prompts, [](int, const std::string&) { return absl::OkStatus(); }, keep);
}

absl::Status AnswerText(const GenerateFlags& flags, OpenedModel& opened, PromptReader& reader) {
  CONVENE_ASSIGN_OR_RETURN(const Tokens prompt, reader.Text(*flags.prompt));
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(1, ContextFor(flags, {prompt})));
  return Answers(flags, opened, *model).Give({prompt}, PrintText, [](int, const Answer&) {
    return Print("\n");
  });
}

// Line by line. A line that cannot be answered costs a paragraph, and the next one is read.
absl::Status AnswerLines(const GenerateFlags& flags, OpenedModel& opened, PromptReader& reader) {
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(1, ContextOfTyped(flags.model, opened)));
  Answers answers(flags, opened, *model);
  const bool is_typed = isatty(STDIN_FILENO) == 1;
  Conversation conversation = reader.NewChat();
  while (true) {
    std::string line;
    if (is_typed) CONVENE_RETURN_IF_ERROR(Print("> "));
    if (!std::getline(std::cin, line)) return is_typed ? Print("\n") : absl::OkStatus();
    if (line.empty()) continue;
    Conversation asked = conversation;
    if (reader.is_chat()) AddMessage("user", line, &asked);
    auto tokens = reader.is_chat() ? reader.Chat(asked) : reader.Text(line);
    absl::Status status = tokens.status();
    if (tokens.ok()) {
      status = answers.Give({*std::move(tokens)}, PrintText, [&](int, const Answer& answer) {
        AddMessage("assistant", answer.text, &asked);
        conversation = asked;
        return Print("\n");
      });
    }
    if (status.ok()) continue;
    if (!absl::IsInvalidArgument(status)) return status;
    std::fprintf(stderr, "convene generate: %s\n", std::string(status.message()).c_str());
  }
}

}  // namespace

absl::StatusOr<int> GenerateCommand(const std::vector<std::string>& arguments) {
  GenerateFlags flags;
  FlagReader reader("convene generate", kGenerateHelp);
  AddFlags(&reader, &flags);
  CONVENE_ASSIGN_OR_RETURN(const auto help, reader.Read(arguments, ProcessEnvironment()));
  if (help.has_value()) {
    CONVENE_RETURN_IF_ERROR(Print(*help));
    return static_cast<int>(ExitCode::kOk);
  }
  CONVENE_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(flags.model));
  if (flags.serve.has_value()) {
    CONVENE_RETURN_IF_ERROR(Serve(flags, opened));
    return static_cast<int>(ExitCode::kOk);
  }
  std::string chat;
  if (flags.chat) chat = opened.tokenizer_path;
  CONVENE_ASSIGN_OR_RETURN(PromptReader prompts,
                           PromptReader::Make(*opened.tokenizer, chat, flags.system));
  if (!flags.prompts.empty()) {
    CONVENE_RETURN_IF_ERROR(AnswerFile(flags, opened, prompts));
  } else if (flags.prompt.has_value()) {
    CONVENE_RETURN_IF_ERROR(AnswerText(flags, opened, prompts));
  } else {
    CONVENE_RETURN_IF_ERROR(AnswerLines(flags, opened, prompts));
  }
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::worker
