#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "launcher/data/data_command.h"
#include "launcher/data/file_tokenizer.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/last_words.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/data/prepare/chat_documents.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/prepare/progress_output.h"
#include "worker_runtime/data/prepare/report_text.h"
#include "worker_runtime/data/store/output_place.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::launcher {
namespace {

// From another folder the file is to find its tokenizer again.
std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return !error && access(absolute.c_str(), F_OK) == 0 ? absolute.string() : path;
}

// Sets the tokenizer's path and the compact vocabulary in `options`.
absl::StatusOr<std::unique_ptr<worker::Tokenizer>> LoadTokenizer(const PrepareFlags& flags,
                                                                 worker::PrepareOptions* options) {
  options->tokenizer_path = flags.tokenizer.empty() ? "byte" : AbsolutePath(flags.tokenizer);
  if (flags.vocabulary_of.empty()) return worker::LoadTokenizer(options->tokenizer_path);
  std::error_code error;
  if (std::filesystem::equivalent(flags.output, flags.vocabulary_of, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.output, " is the file of --vocabulary-of, and would be replaced; name ",
                     "another output"));
  }
  CONVENE_ASSIGN_OR_RETURN(const auto source, worker::OpenTokenSource(flags.vocabulary_of));
  const worker::TokenizerIdentity& made_by = source->tokenizer();
  if (made_by.fingerprint == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.vocabulary_of, " (", source->kind(),
                     ") does not say by which tokenizer "
                     "its ids were made: give --vocabulary-of a file of `convene data prepare`"));
  }
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<worker::Tokenizer> tokenizer,
                           LoadFileTokenizer(*source, flags.tokenizer));
  if (flags.tokenizer.empty()) options->tokenizer_path = made_by.path;
  options->compact = made_by.compact;
  if (made_by.fingerprint != tokenizer->fingerprint()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the ids of ", flags.vocabulary_of, " were made by the tokenizer ", made_by.path, " (",
        made_by.kind, "), which is not the same as ", options->tokenizer_path, " (",
        tokenizer->kind(), "): name the tokenizer that made them by --tokenizer"));
  }
  if (made_by.compact.has_value()) return tokenizer;
  return absl::InvalidArgumentError(absl::StrCat(
      flags.vocabulary_of, " has no compact vocabulary: its ids are all of the ",
      "tokenizer's own. Give --tokenizer ", made_by.path, " instead of ", "--vocabulary-of"));
}

// A signal ends the command at once, as a kill would; before that a person reads what is left. The
// words are true at each moment of PrepareOutput, also before there is a part.
void TellOfSignals(const PrepareFlags& flags, bool is_terminal) {
  SetLastWords(absl::StrCat(
      is_terminal ? "\r\x1b[K" : "", "convene data prepare: stopped by a signal; what stands in ",
      worker::PlaceOfOutput(flags.output),
      ".partial is kept, and the same command goes on from its last journal ",
      "(--journal-interval ", absl::FormatDuration(flags.options.journal_interval), ")\n"));
}

}  // namespace

absl::StatusOr<int> PrepareCommand(const PrepareFlags& flags) {
  const MonotonicTime begin = Clock::Real().Now();
  worker::PrepareOptions options = flags.options;
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<worker::Tokenizer> tokenizer,
                           LoadTokenizer(flags, &options));
  options.tokenizer = tokenizer.get();
  if (!flags.chat_template.empty()) {
    CONVENE_ASSIGN_OR_RETURN(const std::string chat_template,
                             worker::ResolveTemplate(flags.chat_template, options.tokenizer_path));
    CONVENE_ASSIGN_OR_RETURN(const auto date, worker::ParseChatDate(flags.chat_date));
    CONVENE_ASSIGN_OR_RETURN(
        options.format,
        worker::ChatDocuments(chat_template,
                              {.train_on = flags.train_on,
                               .date = date,
                               .append_end_of_document = options.append_end_of_document},
                              tokenizer.get()));
  }
  const bool is_terminal = isatty(STDERR_FILENO) == 1;
  TellOfSignals(flags, is_terminal);
  worker::ProgressOutput progress(stderr, is_terminal);
  const absl::StatusOr<worker::PrepareSummary> summary = worker::PrepareOutput(
      options, flags.output, [&](int64_t done, int64_t total) { progress.Show(done, total); });
  SetLastWords("");
  progress.End();
  CONVENE_RETURN_IF_ERROR(summary.status());
  CONVENE_ASSIGN_OR_RETURN(const auto made, worker::OpenTokenSource(flags.output));
  std::fputs(worker::SummaryText(flags.output, made->vocabulary_size(), Clock::Real().Now() - begin,
                                 *summary)
                 .c_str(),
             stdout);
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher
