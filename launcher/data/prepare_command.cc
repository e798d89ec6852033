#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "launcher/data/data_command.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/chat_documents.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/prepare/progress_output.h"
#include "worker_runtime/data/prepare/report_text.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::launcher {

absl::StatusOr<int> PrepareCommand(const PrepareFlags& flags) {
  const MonotonicTime begin = Clock::Real().Now();
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<worker::Tokenizer> tokenizer,
                           worker::LoadTokenizer(flags.tokenizer));
  worker::PrepareOptions options = flags.options;
  options.tokenizer = tokenizer.get();
  // From another folder the file is to find its tokenizer again.
  std::error_code error;
  const auto absolute = std::filesystem::absolute(flags.tokenizer, error);
  if (!error && access(absolute.c_str(), F_OK) == 0) options.tokenizer_path = absolute.string();
  if (!flags.chat_template.empty()) {
    CONVENE_ASSIGN_OR_RETURN(
        options.format, worker::ChatDocuments(flags.chat_template, flags.train_on,
                                              options.append_end_of_document, tokenizer.get()));
  }
  worker::ProgressOutput progress(stderr, isatty(STDERR_FILENO) == 1);
  const absl::StatusOr<worker::PrepareSummary> summary = worker::PrepareOutput(
      options, flags.output, [&](int64_t done, int64_t total) { progress.Show(done, total); });
  progress.End();
  CONVENE_RETURN_IF_ERROR(summary.status());
  std::fputs(worker::SummaryText(flags.output, tokenizer->vocabulary_size(),
                                 Clock::Real().Now() - begin, *summary)
                 .c_str(),
             stdout);
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher
