#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/data/data_command.h"
#include "launcher/data/file_tokenizer.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/show_text.h"
#include "worker_runtime/data/store/describe.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::launcher {
namespace {

using worker::TokenSource;

constexpr int64_t kBlockTokens = 1 << 16;
constexpr int64_t kSampleTokens = 256;

bool Print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
}

int64_t CountedTokens(const TokenSource& source) {
  if (!source.has_counted()) return source.token_count();
  std::vector<uint8_t> block(kBlockTokens);
  int64_t counted = 0;
  for (int64_t first = 0; first < source.token_count(); first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, source.token_count() - first);
    source.ReadCounted(first, count, block.data());
    counted += std::count(block.begin(), block.begin() + count, 1);
  }
  return counted;
}

// All ids of [first, end) in one line; ends early where nobody reads them any more.
void PrintIds(const TokenSource& source, int64_t first, int64_t end) {
  std::vector<int32_t> block(kBlockTokens);
  for (int64_t at = first; at < end; at += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, end - at);
    source.Read(at, count, block.data());
    const std::string ids = worker::IdsText(absl::MakeConstSpan(block.data(), count));
    if (!Print(absl::StrCat(at > first ? " " : "", ids))) return;
  }
  Print("\n");
}

absl::Status CheckDocument(const TokenSource& source, int64_t document) {
  if (document < source.document_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(source.path(), " has ", source.document_count(),
                                                 " documents; --sample ", document,
                                                 " is none of 0 to ", source.document_count() - 1));
}

// A line above the sample where the tokenizer is not the one that made the file, or "".
std::string TokenizerTrouble(const TokenSource& source, const worker::Tokenizer& tokenizer) {
  const uint64_t made_by = source.tokenizer().fingerprint;
  if (made_by == 0 || made_by == tokenizer.fingerprint()) return "";
  return "this is not the tokenizer that made the file: the text may be wrong\n";
}

worker::MarkStyle StyleOfStdout() {
  return isatty(STDOUT_FILENO) == 1 ? worker::MarkStyle::kTerminal : worker::MarkStyle::kPlain;
}

std::string TextOfSample(const TokenSource& source, const worker::DocumentSample& sample,
                         const std::string& tokenizer_path) {
  const auto tokenizer = LoadFileTokenizer(source, tokenizer_path);
  if (!tokenizer.ok()) {
    return absl::StrCat(
        "(ids, because there is no tokenizer: ", std::string(tokenizer.status().message()), ")\n",
        worker::SampleIdsText(sample));
  }
  return absl::StrCat(TokenizerTrouble(source, **tokenizer),
                      worker::SampleText(sample, **tokenizer, StyleOfStdout()));
}

}  // namespace

absl::StatusOr<int> ShowCommand(const ShowFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<TokenSource> source,
                           worker::OpenTokenSource(flags.file));
  const int64_t document = flags.sample.value_or(0);
  if (flags.sample.has_value()) CONVENE_RETURN_IF_ERROR(CheckDocument(*source, document));
  if (flags.format == "ids") {
    int64_t first = 0;
    int64_t end = source->token_count();
    if (flags.sample.has_value()) {
      first = document == 0 ? 0 : source->document_end(document - 1);
      end = source->document_end(document);
    }
    if (flags.first.has_value()) end = first + std::min(end - first, *flags.first);
    PrintIds(*source, first, end);
    return static_cast<int>(ExitCode::kOk);
  }
  Print(worker::DescriptionText(worker::Describe(*source), CountedTokens(*source)));
  if (source->document_count() == 0) return static_cast<int>(ExitCode::kOk);
  const worker::DocumentSample sample =
      worker::SampleOf(*source, document, flags.first.value_or(kSampleTokens));
  Print(absl::StrCat("sample      document ", document, ", ", sample.ids.size(), " of ",
                     sample.document_tokens, " tokens",
                     sample.counted.empty() ? ""
                     : StyleOfStdout() == worker::MarkStyle::kTerminal
                         ? "; the underlined ones count in the loss"
                         : "; those between {+ and +} count in the loss",
                     "\n\n"));
  Print(TextOfSample(*source, sample, flags.tokenizer));
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher
