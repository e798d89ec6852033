#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/store/foreign_formats.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {
namespace {

constexpr size_t kMagicBytesMax = 9;

// The first bytes; empty where they cannot be read, or the path is no file (a pipe would block).
std::string Begin(const std::string& path) {
  if (!IsFile(path)) return "";
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  if (!fd.ok()) return "";
  char bytes[kMagicBytesMax];
  const ssize_t n = pread(fd->get(), bytes, sizeof(bytes), 0);
  return n > 0 ? std::string(bytes, n) : "";
}

bool IsMegatronIndex(const std::string& path) {
  return Begin(path) == absl::string_view(kMegatronMagic, kMagicBytesMax);
}

absl::Status NoFormat(const std::string& path) {
  const std::string index = MegatronPathsOf(path).index;
  // A pipe without a writer would block.
  const absl::Status opened = OpenFile(path, O_RDONLY | O_NONBLOCK).status();
  for (const absl::Status& status : {opened, OpenFile(index, O_RDONLY | O_NONBLOCK).status()}) {
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  if (!opened.ok()) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file, and no ", index));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": not a file of tokens: neither ours (it would begin with CNVTOKEN; one that was never "
      "finished does not), nor Megatron's (",
      index, " would be there), nor llm.c's, nor nanotron's (its name would end in .ds)"));
}

std::string VocabularyText(const TokenSource& source) {
  const TokenizerIdentity& by = source.tokenizer();
  const std::string part =
      by.compact.has_value()
          ? absl::StrCat("a compact vocabulary of ", by.compact->original_ids.size(), " tokens")
          : "the whole vocabulary";
  return absl::StrCat(source.path(), " has ", part, " of the tokenizer ", by.path, " (", by.kind,
                      ", fingerprint ", absl::Hex(by.fingerprint), ")");
}

}  // namespace

std::optional<TokenFormat> TokenFormatOf(const std::string& path) {
  const std::string begin = Begin(path);
  if (absl::StartsWith(begin, kTokenFileMagic)) return TokenFormat::kConvene;
  // Before llm.c's magic number: tokens may look like one by chance.
  if ((!IsFile(path) || absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".idx")) &&
      IsMegatronIndex(MegatronPathsOf(path).index)) {
    return TokenFormat::kMegatron;
  }
  if (absl::EndsWith(path, ".ds") && IsFile(path)) return TokenFormat::kNanotron;
  if (IsLlmc(begin)) return TokenFormat::kLlmc;
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenTokenSource(const std::string& path) {
  const std::optional<TokenFormat> format = TokenFormatOf(path);
  if (!format.has_value()) return NoFormat(path);
  switch (*format) {
    case TokenFormat::kConvene:
      return TokenFile::Open(path);
    case TokenFormat::kMegatron:
      return OpenMegatron(path);
    case TokenFormat::kLlmc:
      return OpenLlmc(path);
    case TokenFormat::kNanotron:
      break;
  }
  return OpenNanotron(path);
}

absl::Status CheckSameVocabulary(absl::Span<const TokenSource* const> sources) {
  const TokenSource* first = nullptr;
  for (const TokenSource* const source : sources) {
    if (source->tokenizer().fingerprint == 0) continue;
    if (first == nullptr) first = source;
    if (source->tokenizer().fingerprint == first->tokenizer().fingerprint) continue;
    const bool is_compact = first->tokenizer().compact.has_value();
    return absl::FailedPreconditionError(absl::StrCat(
        "data: ", VocabularyText(*first), ", and ", VocabularyText(*source),
        ": their ids mean different texts. Prepare both with one tokenizer",
        is_compact || source->tokenizer().compact.has_value()
            ? absl::StrCat(" and one vocabulary: convene data prepare --vocabulary-of ",
                           is_compact ? first->path() : source->path())
            : ""));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
