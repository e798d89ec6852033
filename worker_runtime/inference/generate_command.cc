#include "worker_runtime/inference/generate_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/flag_reader.h"
#include "tools/base/last_words.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/chat/jinja/print.h"
#include "worker_runtime/inference/answers.h"
#include "worker_runtime/inference/generate_flags.h"
#include "worker_runtime/inference/open_model.h"
#include "worker_runtime/inference/prompts.h"
#include "worker_runtime/inference/serve.h"

namespace convene::worker {
namespace {

using Tokens = std::vector<int32_t>;

struct WholeAnswer {
  std::string text;
  int tokens = 0;
  const char* end = "";
};

// A text goes on as it comes, which may be piece by piece.
using ShowText = absl::FunctionRef<absl::Status(int prompt, const std::string& text)>;
using ShowEnd = absl::FunctionRef<absl::Status(int prompt, const WholeAnswer& answer)>;

// To stderr, once however many processes share the model.
void Tell(const OpenedModel& opened, const std::string& text) {
  if (opened.ranks->speaks()) std::fprintf(stderr, "convene generate: %s\n", text.c_str());
}

// Answers to texts, all by the same flags.
class Answers {
 public:
  Answers(const GenerateFlags& flags, const OpenedModel& opened, LanguageModel& model)
      : flags_(flags), opened_(opened), model_(model) {}

  // `end` is called once for each prompt, when its answer is whole.
  absl::Status Give(const std::vector<Tokens>& prompts, ShowText show, ShowEnd end) {
    std::vector<WholeAnswer> answers(prompts.size());
    int cut = 0;  // by the context
    const GenerateOptions options = {
        .sampling = flags_.sampling,
        .max_new_tokens = flags_.max_new_tokens,
        .end_tokens = flags_.ignore_end ? Tokens() : opened_.end_tokens,
        .first_sequence = prompts_};
    prompts_ += prompts.size();
    CONVENE_RETURN_IF_ERROR(Answer(model_, *opened_.tokenizer, prompts, options, flags_.stop,
                                   [&](int prompt, const std::string& text, AnswerEnd why) {
                                     WholeAnswer& answer = answers[prompt];
                                     ++answer.tokens;
                                     answer.text += text;
                                     CONVENE_RETURN_IF_ERROR(show(prompt, text));
                                     if (why == AnswerEnd::kNotYet) return absl::OkStatus();
                                     const bool is_cut = why == AnswerEnd::kLength &&
                                                         answer.tokens < flags_.max_new_tokens;
                                     cut += is_cut ? 1 : 0;
                                     answer.end = NameOf(why);
                                     return end(prompt, answer);
                                   }));
    if (cut > 0) TellOfCut(cut, prompts.size());
    return absl::OkStatus();
  }

 private:
  void TellOfCut(int cut, size_t prompts) {
    const std::string which =
        prompts == 1 ? "the answer ends" : absl::StrCat(cut, " of ", prompts, " answers end");
    Tell(opened_, absl::StrCat(which, " where the context of ", model_.options().context,
                               " tokens is full (--context), before --max-new-tokens ",
                               flags_.max_new_tokens));
  }

  const GenerateFlags& flags_;
  const OpenedModel& opened_;
  LanguageModel& model_;
  uint64_t prompts_ = 0;  // so far: each has a number of its own
};

// Lines of a file that appears under its name when all are written, or of what is no file.
class Lines {
 public:
  // "": stdout.
  static absl::StatusOr<Lines> Open(const std::string& path) {
    Lines lines;
    if (path.empty()) return lines;
    lines.path_ = path;
    // A device or a pipe is written to as it is.
    std::error_code error;
    const auto kind = std::filesystem::status(path, error).type();
    const bool is_file = kind == std::filesystem::file_type::regular ||
                         kind == std::filesystem::file_type::not_found;
    lines.written_ = is_file ? path + ".partial" : path;
    CONVENE_ASSIGN_OR_RETURN(lines.fd_, OpenFile(lines.written_, O_WRONLY | O_CREAT | O_TRUNC));
    return lines;
  }
  // Answers that an error has stopped are kept: they may have taken hours.
  ~Lines() {
    if (!fd_.valid() || written_ == path_) return;
    if (has_answers_) {
      std::fputs(LastWords().c_str(), stderr);
    } else {
      unlink(written_.c_str());
    }
  }
  Lines(Lines&&) = default;
  Lines& operator=(Lines&&) = default;

  absl::Status Add(const std::string& line) {
    if (!fd_.valid()) return WriteAll(STDOUT_FILENO, line, "stdout");
    CONVENE_RETURN_IF_ERROR(WriteAll(fd_.get(), line, written_));
    // Not earlier: a signal while the model is loaded leaves no answers to speak of.
    if (written_ != path_ && !std::exchange(has_answers_, true)) SetLastWords(LastWords());
    return absl::OkStatus();
  }
  absl::Status Finish() {
    SetLastWords("");
    fd_.Reset();
    return written_ == path_ ? absl::OkStatus() : RenameFile(written_, path_);
  }

 private:
  Lines() = default;
  std::string LastWords() const {
    return absl::StrCat(
        "convene generate: stopped before all answers were there; those that were whole are in ",
        written_, "\n");
  }

  std::string path_, written_;
  UniqueFd fd_;
  bool has_answers_ = false;
};

absl::Status Print(const std::string& text) { return WriteAll(STDOUT_FILENO, text, "stdout"); }
absl::Status PrintText(int /*prompt*/, const std::string& text) { return Print(text); }

absl::StatusOr<std::string> JsonLine(const WholeAnswer& answer) {
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
  std::error_code error;
  if (opened.ranks->layout().world_size() > 1 &&
      !std::filesystem::is_regular_file(flags.prompts, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompts ", flags.prompts,
                     ": with --tp-size or --pp-size each process reads it, so it has to be a "
                     "plain file, and no pipe"));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Tokens> prompts, ReadPrompts(flags.prompts, reader));
  CONVENE_ASSIGN_OR_RETURN(Lines lines, Lines::Open(flags.output));
  const int batch = std::min(flags.batch_size, static_cast<int>(prompts.size()));
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(batch, ContextFor(flags, prompts)));
  std::vector<std::optional<WholeAnswer>> answers(prompts.size());
  size_t written = 0;
  const auto keep = [&](int prompt, const WholeAnswer& answer) -> absl::Status {
    answers[prompt] = answer;
    for (; written < answers.size() && answers[written].has_value(); ++written) {
      CONVENE_ASSIGN_OR_RETURN(const std::string line, JsonLine(*answers[written]));
      CONVENE_RETURN_IF_ERROR(lines.Add(line));
      answers[written]->text.clear();
    }
    return absl::OkStatus();
  };
  CONVENE_RETURN_IF_ERROR(
      Answers(flags, opened, *model)
          .Give(
              prompts, [](int, const std::string&) { return absl::OkStatus(); }, keep));
  return lines.Finish();
}

absl::Status AnswerText(const GenerateFlags& flags, OpenedModel& opened, PromptReader& reader) {
  CONVENE_ASSIGN_OR_RETURN(const Tokens prompt, reader.Text(*flags.prompt));
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(1, ContextFor(flags, {prompt})));
  return Answers(flags, opened, *model).Give({prompt}, PrintText, [](int, const WholeAnswer&) {
    return Print("\n");
  });
}

// A line that is asked as a conversation's next message, or as a text of its own.
struct Asked {
  Conversation conversation;
  absl::StatusOr<Tokens> tokens;
};

Asked Ask(Conversation before, const std::string& line, PromptReader& reader) {
  if (!reader.is_chat()) return {std::move(before), reader.Text(line)};
  AddMessage("user", line, &before);
  absl::StatusOr<Tokens> tokens = reader.Chat(before);
  return {std::move(before), std::move(tokens)};
}

// The same, in a new conversation where the old one has left the line no room in the context.
Asked AskWithRoom(const Conversation& before, const std::string& line, int context,
                  const OpenedModel& opened, PromptReader& reader) {
  const auto has_room = [&](const Asked& asked) {
    return std::ssize(*asked.tokens) < context;  // one is the answer's
  };
  Asked asked = Ask(before, line, reader);
  if (!reader.is_chat() || !asked.tokens.ok() || has_room(asked)) return asked;
  Asked anew = Ask(reader.NewChat(), line, reader);
  if (!anew.tokens.ok() || !has_room(anew)) return asked;
  Tell(opened, absl::StrCat("the conversation has filled the context of ", context,
                            " tokens (--context): a new one begins with this line"));
  return anew;
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
    if (absl::EndsWith(line, "\r")) line.pop_back();
    if (line.empty()) continue;
    Asked asked = AskWithRoom(conversation, line, model->options().context, opened, reader);
    absl::Status status = asked.tokens.status();
    if (status.ok()) {
      status = answers.Give({*asked.tokens}, PrintText, [&](int, const WholeAnswer& answer) {
        AddMessage("assistant", answer.text, &asked.conversation);
        conversation = asked.conversation;
        return Print("\n");
      });
    }
    if (status.ok()) continue;
    if (!absl::IsInvalidArgument(status)) return status;
    Tell(opened, std::string(status.message()));
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
  if (!opened.ranks->speaks()) {
    CONVENE_ASSIGN_OR_RETURN(const UniqueFd nothing, OpenFile("/dev/null", O_WRONLY));
    dup2(nothing.get(), STDOUT_FILENO);
    flags.output.clear();
  }
  if (flags.serve.has_value()) return Serve(flags, opened);
  std::string chat;
  if (flags.chat) chat = opened.tokenizer_path;
  CONVENE_ASSIGN_OR_RETURN(PromptReader prompts,
                           PromptReader::Make(*opened.tokenizer, chat, flags.system));
  if (const auto end = prompts.EndOfAnswer()) opened.end_tokens.push_back(*end);
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
