#include "worker_runtime/inference/serve.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/exit_code.h"
#include "tools/base/host_port.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/inference/answers.h"
#include "worker_runtime/inference/completion_server.h"
#include "worker_runtime/inference/prompts.h"

namespace convene::worker {
namespace {

using Tokens = std::vector<int32_t>;

// Log-probabilities of prompts take memory in the answer, and no time that would make them few.
absl::Status CheckScores(const CompletionRequest& request, int64_t prompt_tokens) {
  constexpr int64_t kMost = 1 << 22;  // half a gigabyte
  if (!request.echoes || !request.top_logprobs.has_value()) return absl::OkStatus();
  const int64_t scores = prompt_tokens * request.choices * (*request.top_logprobs + 1);
  if (scores <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"echo\" and \"logprobs\" ask for ", scores, " log-probabilities of prompts, and ", kMost,
      " are the most: ask for fewer prompts at once, a smaller \"n\" or fewer \"logprobs\""));
}

class Answerer {
 public:
  // `chats`: or why there is none.
  Answerer(LanguageModel& model, const OpenedModel& opened, PromptReader texts,
           absl::StatusOr<PromptReader> chats)
      : model_(model), opened_(opened), texts_(std::move(texts)), chats_(std::move(chats)) {
    if (chats_.ok()) end_of_answer_ = chats_->EndOfAnswer();
  }

  absl::StatusOr<Usage> Answer(const CompletionRequest& request, ShowPiece show, GoesOn goes_on) {
    std::vector<Tokens> prompts;
    std::vector<Unshown> unshown;
    Usage usage;
    for (const auto& prompt : request.prompts) {
      CONVENE_ASSIGN_OR_RETURN(const Tokens tokens, TokensOf(request, prompt));
      usage.prompt_tokens += static_cast<int64_t>(tokens.size());
      prompts.insert(prompts.end(), request.choices, tokens);
      // Special tokens have no text.
      Unshown first = {.begins_text =
                           request.echoes || opened_.tokenizer->Decode(tokens, false).empty()};
      if (request.echoes) {
        const auto* const text = std::get_if<std::string>(&prompt);
        first.text = text != nullptr ? *text : opened_.tokenizer->Decode(tokens, false);
        if (text != nullptr) first.echoed = tokens.size();
      }
      unshown.insert(unshown.end(), request.choices, first);
    }
    CONVENE_RETURN_IF_ERROR(CheckScores(request, usage.prompt_tokens));
    // A full context ends a text, each at its own length.
    const int most = request.max_tokens < 0 ? model_.options().context : request.max_tokens;
    GenerateOptions options = {.sampling = request.sampling,
                               .max_new_tokens = most,
                               .end_tokens = opened_.end_tokens,
                               .goes_on = goes_on};
    if (request.is_chat && end_of_answer_.has_value()) {
      options.end_tokens.push_back(*end_of_answer_);
    }
    if (request.top_logprobs.has_value()) {
      options.sees_prompts = request.echoes;
      options.see_logits = [&](int index, int32_t token, absl::Span<const float> logits) {
        AddToken(token, logits, *request.top_logprobs, &unshown[index]);
      };
    }
    const auto show_more = [&](int index, const std::string& text, const char* end) {
      Unshown& more = unshown[index];
      show(index, {std::exchange(more.text, "") + text, end, std::exchange(more.tokens, {})});
    };
    CONVENE_RETURN_IF_ERROR(
        worker::Answer(model_, *opened_.tokenizer, prompts, options, request.stop,
                       [&](int index, const std::string& text, AnswerEnd end) {
                         ++usage.completion_tokens;
                         const char* const reason = end == AnswerEnd::kLength ? "length" : "stop";
                         show_more(index, text, end == AnswerEnd::kNotYet ? "" : reason);
                         return absl::OkStatus();
                       }));
    for (size_t i = 0; i < prompts.size() && options.max_new_tokens == 0; ++i) {
      show_more(static_cast<int>(i), "", "length");
    }
    return usage;
  }

 private:
  // Of a choice.
  struct Unshown {
    std::string text;
    std::vector<ScoredToken> tokens;
    int64_t characters = 0;   // of all its tokens so far
    bool begins_text = true;  // the next token that is text is the first of all
    size_t added = 0;         // tokens so far
    size_t echoed = 0;        // of an echoed text, in which the special ones stand as they were
  };

  std::string BytesOf(int32_t token) const {
    std::string bytes = opened_.tokenizer->SpecialTextOf(token);
    if (bytes.empty()) opened_.tokenizer->AppendTokenBytes(token, &bytes);
    return bytes;
  }

  // `logits`: the token was chosen from them; none: nothing comes before it.
  void AddToken(int32_t token, absl::Span<const float> logits, int top, Unshown* choice) const {
    const auto continues = [](char byte) { return (byte & 0xC0) == 0x80; };
    std::string bytes;  // in the text, where special tokens have none
    opened_.tokenizer->AppendTokenBytes(token, &bytes);
    if (!bytes.empty() && std::exchange(choice->begins_text, false)) {
      // SentencePiece's space before a text is none of the text.
      const size_t shown = opened_.tokenizer->Decode({token}, false).size();
      bytes.erase(0, bytes.size() - std::min(bytes.size(), shown));
    }
    const size_t place = choice->added++;
    if (place >= opened_.tokenizer->prefix().size() && place < choice->echoed) {
      bytes += opened_.tokenizer->SpecialTextOf(token);
    }
    const bool is_within = !bytes.empty() && continues(bytes[0]) && choice->characters > 0;
    ScoredToken scored = {.bytes = BytesOf(token),
                          .offset = choice->characters - (is_within ? 1 : 0)};
    choice->characters += std::ssize(bytes) - absl::c_count_if(bytes, continues);
    if (!logits.empty()) {
      for (const LogProbability& one : LogProbabilities(logits, token, top)) {
        scored.scores.push_back({BytesOf(one.token), one.value});
      }
    }
    choice->tokens.push_back(std::move(scored));
  }

  absl::StatusOr<Tokens> TokensOf(const CompletionRequest& request,
                                  const std::variant<std::string, Tokens>& prompt) {
    if (const auto* const ids = std::get_if<Tokens>(&prompt)) return *ids;
    const std::string& text = std::get<std::string>(prompt);
    if (!request.is_chat) return texts_.Text(text);
    if (chats_.ok()) return chats_->Messages(text);
    return absl::InvalidArgumentError(absl::StrCat(
        "this model has no chat template that can be used (", chats_.status().message(),
        "): ask it by /v1/completions, or serve it with a --tokenizer folder that has one"));
  }

  LanguageModel& model_;
  const OpenedModel& opened_;
  PromptReader texts_;
  absl::StatusOr<PromptReader> chats_;
  std::optional<int32_t> end_of_answer_;
};

// The last part of the path, which may end with a slash or be ".".
std::string NameOf(const std::string& model) {
  const std::filesystem::path path = std::filesystem::absolute(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace

absl::StatusOr<int> Serve(const GenerateFlags& flags, OpenedModel& opened) {
  CONVENE_ASSIGN_OR_RETURN(PromptReader texts, PromptReader::Make(*opened.tokenizer, "", ""));
  absl::StatusOr<PromptReader> chats =
      PromptReader::Make(*opened.tokenizer, opened.tokenizer_path, "");
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(flags.batch_size, ContextOfTyped(flags.model, opened)));
  // Not earlier: while weights are read, which may take minutes, nothing is there to be ended well.
  const UniqueFd signals = TakeSignals({SIGINT, SIGTERM});
  Answerer answerer(*model, opened, std::move(texts), std::move(chats));
  const std::string name = NameOf(flags.model.model);
  CONVENE_ASSIGN_OR_RETURN(
      const auto server, CompletionServer::Start(
                             flags.host, *flags.serve, name,
                             [&](const CompletionRequest& request, ShowPiece show, GoesOn goes_on) {
                               return answerer.Answer(request, show, goes_on);
                             }));
  std::fprintf(stderr, "convene generate: %s is served at http://%s/v1 until ^C\n", name.c_str(),
               FormatHostPort(flags.host, server->port()).c_str());
  pollfd signal = {signals.get(), POLLIN, 0};
  while (signal.revents == 0) poll(&signal, 1, -1);
  signalfd_siginfo info = {};
  CONVENE_CHECK(read(signals.get(), &info, sizeof(info)) == sizeof(info));
  return ExitCodeForSignal(static_cast<int>(info.ssi_signo));
}

}  // namespace convene::worker
