#include "worker_runtime/inference/serve.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/inference/answers.h"
#include "worker_runtime/inference/completion_server.h"
#include "worker_runtime/inference/prompts.h"

namespace convene::worker {
namespace {

using Tokens = std::vector<int32_t>;

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
    const int most = request.max_tokens == 0 ? room : std::min(request.max_tokens, room);
    const GenerateOptions options = {
        .sampling = request.sampling, .max_new_tokens = most, .end_tokens = opened_.end_tokens};
    CONVENE_RETURN_IF_ERROR(
        worker::Answer(model_, *opened_.tokenizer, prompts, options, request.stop,
                       [&](int index, const std::string& text, AnswerEnd end) {
                         ++usage.completion_tokens;
                         Choice piece = {.text = text};
                         if (end != AnswerEnd::kNotYet) {
                           piece.finish_reason = end == AnswerEnd::kLength ? "length" : "stop";
                         }
                         return show(index, piece);
                       }));
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
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                           opened.Load(flags.batch_size, ContextOfTyped(flags.model, opened)));
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
