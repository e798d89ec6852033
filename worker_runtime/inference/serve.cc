#include "worker_runtime/inference/serve.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/inference/answers.h"
#include "worker_runtime/inference/completion_server.h"
#include "worker_runtime/inference/prompts.h"
#include "worker_runtime/inference/text_stream.h"

namespace convene::worker {
namespace {

using Tokens = std::vector<int32_t>;

// The scores of one choice's tokens, with their texts and places.
class ScoreText {
 public:
  explicit ScoreText(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), stream_(tokenizer, {}) {}

  // The prompt comes before the answer: its text. Scores of all its tokens but the first follow.
  std::string Begin(const Tokens& prompt) {
    taken_.push_back(Next(prompt[0]));
    TextStream whole(*tokenizer_, {});
    std::string text;
    for (const int32_t token : prompt) text += whole.Add(token);
    return text + whole.Finish();
  }
  void Add(const TokenScore& score) {
    ScoredToken next = Next(score.token);
    next.log_probability = score.log_probability;
    for (const auto& [token, log_probability] : score.top) {
      next.top.emplace_back(TextOf(token), log_probability);
    }
    taken_.push_back(std::move(next));
  }
  std::vector<ScoredToken> Take() { return std::exchange(taken_, {}); }

 private:
  std::string TextOf(int32_t token) const {
    return Utf8(tokenizer_->Decode({token}, /*show_specials=*/true));
  }
  ScoredToken Next(int32_t token) {
    ScoredToken next = {.text = TextOf(token), .offset = offset_};
    for (std::string text = stream_.Add(token); !text.empty();) {
      text.erase(0, FirstCharacter(text).length);
      ++offset_;
    }
    return next;
  }

  const Tokenizer* tokenizer_;
  TextStream stream_;
  int64_t offset_ = 0;
  std::vector<ScoredToken> taken_;
};

class Answerer {
 public:
  // `chats`: or why there is none.
  Answerer(LanguageModel& model, const OpenedModel& opened, PromptReader texts,
           absl::StatusOr<PromptReader> chats)
      : model_(model), opened_(opened), texts_(std::move(texts)), chats_(std::move(chats)) {}

  absl::StatusOr<Usage> Answer(const CompletionRequest& request, ShowPiece show) {
    std::vector<Tokens> prompts;
    Usage usage;
    size_t longest = 0;
    for (const auto& prompt : request.prompts) {
      CONVENE_ASSIGN_OR_RETURN(const Tokens tokens, TokensOf(request, prompt));
      usage.prompt_tokens += static_cast<int64_t>(tokens.size());
      longest = std::max(longest, tokens.size());
      prompts.insert(prompts.end(), request.choices, tokens);
    }
    const int room = std::max(1, model_.options().context - static_cast<int>(longest));
    const int most = request.max_tokens < 0 ? room : std::min(request.max_tokens, room);
    const bool is_scored = request.top_scores >= 0;
    const GenerateOptions options = {.sampling = request.sampling,
                                     .max_new_tokens = most,
                                     .end_tokens = opened_.end_tokens,
                                     .top_scores = std::max(0, request.top_scores),
                                     .scores_prompts = is_scored && request.echoes};
    std::vector<ScoreText> scored(prompts.size(), ScoreText(*opened_.tokenizer));
    std::vector<std::string> echoes(prompts.size());
    for (size_t i = 0; i < prompts.size() && request.echoes; ++i) {
      echoes[i] = scored[i].Begin(prompts[i]);
    }
    const auto send = [&](int index, const std::string& text, const std::string& finish_reason) {
      Choice piece = {.text = std::exchange(echoes[index], "") + text,
                      .finish_reason = finish_reason};
      if (is_scored) piece.scores = scored[index].Take();
      return show(index, piece);
    };
    const auto hear = [&](int index, const TokenScore& score) { scored[index].Add(score); };
    CONVENE_RETURN_IF_ERROR(worker::Answer(
        model_, *opened_.tokenizer, prompts, options, request.stop,
        [&](int index, const std::string& text, AnswerEnd end) {
          ++usage.completion_tokens;
          const char* const ended = end == AnswerEnd::kLength ? "length" : "stop";
          return send(index, text, end == AnswerEnd::kNotYet ? "" : ended);
        },
        is_scored ? std::optional<ScoreSink>(hear) : std::nullopt));
    for (size_t i = 0; i < prompts.size() && most == 0; ++i) {
      CONVENE_RETURN_IF_ERROR(send(static_cast<int>(i), "", "length"));
    }
    return usage;
  }

 private:
  absl::StatusOr<Tokens> TokensOf(const CompletionRequest& request,
                                  const std::variant<std::string, Tokens>& prompt) {
    if (const auto* const ids = std::get_if<Tokens>(&prompt)) {
      const int words = model_.options().config.vocabulary_size;
      for (const int32_t id : *ids) {
        if (id < words) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("\"prompt\" has the id ", id, ", and the model has ", words, " tokens"));
      }
      return *ids;
    }
    const std::string& text = std::get<std::string>(prompt);
    if (!request.is_chat) return texts_.Text(text);
    if (chats_.ok()) return chats_->Line(text);
    return absl::InvalidArgumentError(absl::StrCat(
        "this model has no chat template that can be used (", chats_.status().message(),
        "): ask it by /v1/completions, or serve it with a --tokenizer folder that has one"));
  }

  LanguageModel& model_;
  const OpenedModel& opened_;
  PromptReader texts_;
  absl::StatusOr<PromptReader> chats_;
};

}  // namespace

absl::Status Serve(const GenerateFlags& flags, OpenedModel& opened) {
  const UniqueFd signals = TakeSignals({SIGINT, SIGTERM});
  CONVENE_ASSIGN_OR_RETURN(PromptReader texts, PromptReader::Make(*opened.tokenizer, "", ""));
  absl::StatusOr<PromptReader> chats =
      PromptReader::Make(*opened.tokenizer, opened.tokenizer_path, "");
  CONVENE_ASSIGN_OR_RETURN(
      const std::unique_ptr<LanguageModel> model,
      opened.Load(flags.batch_size, ContextOfTyped(flags.model, opened), /*scores=*/true));
  Answerer answerer(*model, opened, std::move(texts), std::move(chats));
  const std::string name =
      std::filesystem::absolute(flags.model.model).lexically_normal().filename().string();
  CONVENE_ASSIGN_OR_RETURN(
      const auto server,
      CompletionServer::Start(flags.host, *flags.serve, name,
                              [&](const CompletionRequest& request, ShowPiece show) {
                                return answerer.Answer(request, show);
                              }));
  std::fprintf(stderr, "convene generate: %s is served at http://%s:%d/v1 until ^C\n", name.c_str(),
               flags.host.c_str(), server->port());
  pollfd signal = {signals.get(), POLLIN, 0};
  while (signal.revents == 0) poll(&signal, 1, -1);
  return absl::OkStatus();
}

}  // namespace convene::worker
