#include "worker_runtime/inference/evaluate_command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/inference/evaluation.h"
#include "worker_runtime/inference/generate_flags.h"
#include "worker_runtime/inference/open_model.h"

namespace convene::worker {
namespace {

constexpr int kWindow = 1024;

absl::Status Print(const std::string& text) { return WriteAll(STDOUT_FILENO, text, "stdout"); }

// By id; empty without a tokenizer.
std::vector<uint16_t> BytesOfTokens(const Tokenizer* tokenizer) {
  std::vector<uint16_t> bytes;
  for (int id = 0; tokenizer != nullptr && id < tokenizer->vocabulary_size(); ++id) {
    std::string text;
    tokenizer->AppendTokenBytes(id, &text);
    bytes.push_back(static_cast<uint16_t>(std::min<size_t>(text.size(), 65535)));
  }
  return bytes;
}

absl::Status CheckTokens(const std::vector<int32_t>& tokens, int vocabulary_size) {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocabulary_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("it has the token ", token,
                                                   ", and the model has ", vocabulary_size,
                                                   " tokens: the file is of another tokenizer"));
  }
  return absl::OkStatus();
}

// A file that does not say what its ids are is believed.
absl::Status CheckTokenizer(const TokenizerIdentity& made_by, const OpenedModel& opened) {
  if (opened.tokenizer == nullptr || made_by.fingerprint == 0 ||
      made_by.fingerprint == opened.tokenizer->fingerprint()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "its ids are of ", made_by.compact.has_value() ? "some tokens of " : "", "the tokenizer ",
      made_by.path, " (", made_by.kind, "), and the model's is ", opened.tokenizer_path, " (",
      opened.tokenizer->kind(),
      "): prepare the text with that one (convene data prepare --tokenizer ", opened.tokenizer_path,
      "), or, if the model was trained on such ids, name the tokenizer that made "
      "them (--tokenizer)"));
}

absl::StatusOr<TextScore> ScoreTokenFile(const std::string& path, const OpenedModel& opened,
                                         Scorer& scorer) {
  CONVENE_ASSIGN_OR_RETURN(const auto source, OpenTokenSource(path));
  CONVENE_RETURN_IF_ERROR(CheckTokenizer(source->tokenizer(), opened));
  const std::vector<uint16_t> ours = BytesOfTokens(opened.tokenizer.get());
  const absl::Span<const uint16_t> bytes =
      source->token_bytes().empty() ? absl::MakeConstSpan(ours) : source->token_bytes();
  TextScore score;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> counted;
  for (int64_t document = 0; document < source->document_count(); ++document) {
    const int64_t end = source->document_end(document);
    // A window shares its last token with the next one, so that each token but a document's first
    // is a target once.
    for (int64_t first = source->document_begin(document); first + 1 < end;
         first += scorer.window()) {
      tokens.resize(std::min<int64_t>(scorer.window() + 1, end - first));
      source->Read(first, static_cast<int64_t>(tokens.size()), tokens.data());
      CONVENE_RETURN_IF_ERROR(CheckTokens(tokens, opened.weights.config.vocabulary_size));
      if (source->has_counted()) {
        counted.resize(tokens.size());
        source->ReadCounted(first, static_cast<int64_t>(tokens.size()), counted.data());
      }
      CONVENE_RETURN_IF_ERROR(ScoreText(scorer, tokens, counted, bytes, &score));
    }
  }
  return score;
}

// `convene data prepare` unpacks such a file, or finds the texts in it; here it would be measured
// as the bytes that it is.
bool HasToBePrepared(const std::string& path, absl::string_view bytes) {
  for (const absl::string_view mark : {"\x1F\x8B", "\x28\xB5\x2F\xFD"}) {  // gzip's, zstd's
    if (absl::StartsWith(bytes, mark)) return true;
  }
  for (const absl::string_view suffix : {".jsonl", ".jsonlines", ".ndjson", ".json"}) {
    if (absl::EndsWithIgnoreCase(path, suffix)) return true;
  }
  return false;
}

absl::StatusOr<TextScore> ScoreTextFile(const std::string& path, const OpenedModel& opened,
                                        Scorer& scorer) {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  if (opened.tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        "it is a text, and the model has no tokenizer: name the one that it was trained with "
        "(--tokenizer PATH, or --tokenizer byte)");
  }
  if (HasToBePrepared(path, text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it is packed, or JSON lines by its name: make tokens of its texts (convene data prepare "
        "--tokenizer ",
        opened.tokenizer_path, " --output FILE ", path, "), and give FILE"));
  }
  std::vector<int32_t> tokens(opened.tokenizer->prefix().begin(), opened.tokenizer->prefix().end());
  opened.tokenizer->NewEncoder(SpecialText::kAsText)->Encode(text, &tokens);
  TextScore score;
  CONVENE_RETURN_IF_ERROR(
      ScoreText(scorer, tokens, {}, BytesOfTokens(opened.tokenizer.get()), &score));
  return score;
}

absl::Status EvaluateText(const std::string& path, const OpenedModel& opened, Scorer& scorer) {
  const auto score = TokenFormatOf(path).has_value() ? ScoreTokenFile(path, opened, scorer)
                                                     : ScoreTextFile(path, opened, scorer);
  if (!score.ok()) return Annotate(score.status(), path);
  if (score->tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no token is scored: a text has at least two"));
  }
  std::string line = absl::StrFormat("%s: %d tokens, loss %.6f nats a token, perplexity %.4f", path,
                                     score->tokens, score->mean(), score->perplexity());
  if (score->bytes > 0) absl::StrAppendFormat(&line, ", %.6f bits a byte", score->bits_per_byte());
  return Print(line + "\n");
}

absl::Status EvaluateChoices(const std::string& path, const OpenedModel& opened, Scorer& scorer) {
  CONVENE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  const auto questions = ParseChoices(bytes);
  if (!questions.ok()) return Annotate(questions.status(), path);
  const auto score = ScoreChoices(scorer, *questions, opened.weights.config.vocabulary_size);
  if (!score.ok()) return Annotate(score.status(), path);
  const double all = score->questions;
  return Print(absl::StrFormat(
      "%s: %d questions, right %.4f by the loss of an ending (acc), %.4f by its loss a token "
      "(acc_norm)\n",
      path, score->questions, score->by_sum / all, score->by_mean / all));
}

}  // namespace

absl::StatusOr<int> EvaluateCommand(const std::vector<std::string>& arguments) {
  EvaluateFlags flags;
  FlagReader reader("convene evaluate", kEvaluateHelp);
  AddFlags(&reader, &flags);
  CONVENE_ASSIGN_OR_RETURN(const auto help, reader.Read(arguments, ProcessEnvironment()));
  if (help.has_value()) {
    CONVENE_RETURN_IF_ERROR(Print(*help));
    return static_cast<int>(ExitCode::kOk);
  }
  CONVENE_ASSIGN_OR_RETURN(const OpenedModel opened,
                           OpenModel(flags.model, /*needs_tokenizer=*/false));
  const ModelConfig& config = opened.weights.config;
  const int window = config.positions > 0 ? std::min(config.positions, kWindow) : kWindow;
  CONVENE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Scorer> scorer,
      Scorer::Make({.config = config,
                    .dtype = opened.dtype,
                    .window = flags.model.context > 0 ? flags.model.context : window},
                   *opened.weights.source, opened.communicators, *opened.device));
  for (const std::string& path : flags.data) {
    CONVENE_RETURN_IF_ERROR(EvaluateText(path, opened, *scorer));
  }
  if (!flags.choices.empty()) {
    CONVENE_RETURN_IF_ERROR(EvaluateChoices(flags.choices, opened, *scorer));
  }
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::worker
