#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/data/data_command.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/open_data.h"
#include "worker_runtime/data/prepare/progress_output.h"
#include "worker_runtime/data/prepare/show_text.h"
#include "worker_runtime/data/store/convert.h"
#include "worker_runtime/data/store/describe.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::launcher {
namespace {

// Calls `read` with what shows on stderr how much of the source's tokens is done.
template <typename Read>
auto WithProgress(const worker::TokenSource& source, const Read& read) {
  worker::ProgressOutput output(stderr, isatty(STDERR_FILENO) == 1);
  auto result = read([&](int64_t done_tokens, int64_t total_tokens) {
    const double share = static_cast<double>(done_tokens) / static_cast<double>(total_tokens);
    const int64_t bytes = source.file_bytes();
    output.Show(static_cast<int64_t>(share * static_cast<double>(bytes)), bytes);
  });
  output.End();
  return result;
}

absl::StatusOr<worker::VerifyReport> Verify(const std::string& file) {
  CONVENE_ASSIGN_OR_RETURN(const auto source, worker::OpenTokenSource(file));
  return WithProgress(
      *source, [&](const auto& progress) { return worker::VerifyTokens(*source, progress); });
}

}  // namespace

// Goes on behind a bad file, so that one run finds all of them.
absl::StatusOr<int> VerifyCommand(const VerifyFlags& flags) {
  int bad = 0;
  for (const std::string& file : flags.files) {
    const absl::StatusOr<worker::VerifyReport> report = Verify(file);
    if (report.ok()) {
      std::printf("%s: whole, %lld documents, %lld tokens, largest id %d\n", file.c_str(),
                  static_cast<long long>(report->documents), static_cast<long long>(report->tokens),
                  report->largest_id);
      continue;
    }
    ++bad;
    std::fprintf(stderr, "convene: %s\n", std::string(report.status().message()).c_str());
  }
  if (bad == 0) return static_cast<int>(ExitCode::kOk);
  return absl::DataLossError(
      absl::StrCat(bad, " of ", flags.files.size(), " files cannot be used, as said above"));
}

absl::StatusOr<int> BlendCommand(const BlendFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const auto paths, worker::ParseDataPaths(flags.specs));
  CONVENE_ASSIGN_OR_RETURN(const auto opened, worker::OpenData(paths, {}, {}, nullptr));
  std::vector<worker::BlendedFile> files;
  for (const worker::OpenedData& data : opened) {
    const int64_t tokens = data.tokens->token_count();
    files.push_back(
        {data.tokens->path(), tokens, data.weight.value_or(static_cast<double>(tokens))});
  }
  std::fputs(worker::BlendText(files).c_str(), stdout);
  return static_cast<int>(ExitCode::kOk);
}

absl::StatusOr<int> ConvertCommand(const ConvertFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const auto source, worker::OpenTokenSource(flags.input));
  CONVENE_RETURN_IF_ERROR(WithProgress(*source, [&](const auto& progress) {
    return worker::ConvertTokens(
        *source, flags.output,
        {.format = *flags.to, .drop_counted = flags.drop_counted, .progress = progress});
  }));
  CONVENE_ASSIGN_OR_RETURN(const auto written, worker::OpenTokenSource(flags.output));
  std::printf("%s: %s, %lld tokens\n", flags.output.c_str(), written->kind().c_str(),
              static_cast<long long>(written->token_count()));
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher
