#include "worker_runtime/data/prepare/testing/letter_files.h"

#include "absl/strings/match.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/data/prepare/testing/letter_tokenizer.h"
#include "worker_runtime/data/store/token_file.h"

namespace convene::worker::testing {

void Put(const std::string& path, const std::string& text) {
  REQUIRE_OK(WriteFileAtomic(path, text));
}

PrepareOptions LetterOptions(const TempDir& dir, const std::vector<std::string>& patterns) {
  static const auto* const tokenizer = new LetterTokenizer();
  PrepareOptions options;
  for (const std::string& pattern : patterns) options.input.patterns.push_back(dir.File(pattern));
  options.tokenizer = tokenizer;
  options.tokenizer_path = "letters";
  options.threads = 2;
  options.journal_interval = absl::ZeroDuration();
  return options;
}

TokenCache CacheOf(const TempDir& dir) { return {.directory = dir.File("cache")}; }

absl::StatusOr<std::string> Cached(const TempDir& dir, const std::vector<std::string>& patterns) {
  CONVENE_ASSIGN_OR_RETURN(const PreparedTokens made,
                           PrepareTokenFile(LetterOptions(dir, patterns), CacheOf(dir), nullptr));
  return made.path;
}

std::string TextOf(const std::string& path) {
  const auto file = TokenFile::Open(path);
  REQUIRE_OK(file);
  std::vector<int32_t> tokens((*file)->token_count());
  (*file)->Read(0, (*file)->token_count(), tokens.data());
  return LetterTokenizer().Decode(tokens, true);
}

std::string Made(const TempDir& dir, const PrepareOptions& options, PrepareSummary* summary) {
  const auto made = PrepareOutput(options, dir.File("a.bin"), nullptr);
  REQUIRE_OK(made);
  if (summary != nullptr) *summary = *made;
  return TextOf(dir.File("a.bin"));
}

std::vector<std::string> FilesWith(const std::string& directory, const std::string& part) {
  std::vector<std::string> found;
  const std::vector<std::string> names = *ListDirectory(directory);
  for (const std::string& name : names) {
    if (absl::StrContains(name, part)) found.push_back(name);
  }
  return found;
}

}  // namespace convene::worker::testing
