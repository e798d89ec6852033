#include "worker_runtime/tokenizer/load_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/gguf/gguf_tokenizer.h"
#include "worker_runtime/tokenizer/compact_tokenizer.h"
#include "worker_runtime/tokenizer/compact_vocabulary.h"
#include "worker_runtime/tokenizer/json/tokenizer_json.h"
#include "worker_runtime/tokenizer/sentencepiece/model.h"
#include "worker_runtime/tokenizer/tekken.h"
#include "worker_runtime/tokenizer/tiktoken.h"
#include "worker_runtime/tokenizer/tokenizer_config.h"

namespace convene::worker {
namespace {

// Ten times the largest known one. A file of weights given by mistake must not be read whole.
constexpr uintmax_t kLargestFile = uintmax_t{256} << 20;

// "tiktoken.model" is Kimi's and Moonlight's.
constexpr const char* kFileNames[] = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                      "tiktoken.model"};

// The tokenizer of a model folder.
absl::StatusOr<std::string> FindInFolder(const std::string& folder) {
  for (const char* const name : kFileNames) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (IsFile(path)) return path;
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  std::vector<std::string> found;
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".tiktoken")) found.push_back(name);
  }
  if (found.size() == 1) return absl::StrCat(folder, "/", found[0]);
  if (found.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " has several tokenizers: ", JoinCapped(found, 3),
                     ". Name the one to use with its path"));
  }
  return absl::NotFoundError(absl::StrCat(folder, " has no tokenizer: none of ",
                                          absl::StrJoin(kFileNames, ", "),
                                          ", *.tiktoken is in it"));
}

// `named`: what the files name.
void NameTokens(std::vector<NamedToken> named, Tokenizer* tokenizer) {
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    const std::string text = id.has_value() ? tokenizer->SpecialTextOf(*id) : "";
    const bool is_known = std::any_of(named.begin(), named.end(),
                                      [&](const NamedToken& token) { return token.name == name; });
    if (!is_known && !text.empty()) named.push_back({name, text});
  };
  const absl::Span<const int32_t> prefix = tokenizer->prefix();
  add("bos_token", prefix.empty() ? std::nullopt : std::optional<int32_t>(prefix[0]));
  add("eos_token", tokenizer->end_of_document());
  tokenizer->SetNamedTokens(std::move(named));
}

// The kind comes from the content: other programs call files of three kinds tokenizer.model.
// `config`: of ReadTokenizerConfig.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadByContent(const std::string& content,
                                                         const std::string& config,
                                                         const std::string& path) {
  using Result = absl::StatusOr<std::unique_ptr<Tokenizer>>;
  const auto named = [&path](Result read, absl::string_view kind = "") -> Result {
    if (read.ok()) return read;
    return Annotate(read.status(), absl::StrCat(path, kind));
  };
  const absl::string_view start = absl::string_view(content).substr(0, 1024);
  if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(start), "{")) {
    return LooksLikeTekken(content) ? named(ReadTekken(content), ", a tekken.json")
                                    : named(ReadTokenizerJson(content, config));
  }
  if (LooksLikeTiktoken(content)) {
    return named(ReadTiktoken(content, config), ", a file of tiktoken's kind");
  }
  if (LooksLikeSentencePiece(content)) return named(ReadSentencePiece(content, config));
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   " is no tokenizer: its content is neither a tokenizer.json, a tekken.json, "
                   "lines of tiktoken's kind nor a SentencePiece model"));
}

// ReadByContent, with names for the special tokens.
absl::StatusOr<std::unique_ptr<Tokenizer>> Make(const std::string& content,
                                                const std::string& config,
                                                const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                           ReadByContent(content, config, path));
  absl::StatusOr<VocabularyConfig> read = ReadVocabularyConfig(config);
  if (!read.ok()) return Annotate(read.status(), path);
  NameTokens(std::move(read->named_tokens), tokenizer.get());
  return tokenizer;
}

// `whole`, cut as the file `path` says.
absl::StatusOr<std::unique_ptr<Tokenizer>> Cut(std::unique_ptr<Tokenizer> whole,
                                               const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const std::string content, ReadFile(path));
  absl::StatusOr<std::vector<int32_t>> ids = ReadCompactVocabulary(content);
  if (!ids.ok()) return Annotate(ids.status(), path);
  absl::StatusOr<std::unique_ptr<Tokenizer>> cut =
      MakeCompactTokenizer(std::move(whole), *std::move(ids));
  if (cut.ok()) return cut;
  return Annotate(cut.status(), path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  if (path.empty() || path == "byte") return MakeByteTokenizer();
  std::string file = path;
  if (IsDirectory(path)) {
    CONVENE_ASSIGN_OR_RETURN(file, FindInFolder(path));
  }
  if (IsGgufFile(file)) {
    CONVENE_ASSIGN_OR_RETURN(const GgufTokenizer inside, ReadGgufTokenizer(file));
    return Make(inside.content, inside.config_json, file);
  }
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(file, error);
  if (error == std::errc::no_such_file_or_directory) {
    return absl::NotFoundError(absl::StrCat(
        "there is no tokenizer at ", file,
        ": give the path of a tokenizer's file, or of a model's folder. A model's name is not "
        "looked up on the Hub: `hf download NAME tokenizer.json --local-dir FOLDER` fetches it"));
  }
  if (!error && size > kLargestFile) {
    return absl::InvalidArgumentError(absl::StrCat(
        file, " has ", HumanBytes(static_cast<double>(size)), "; no tokenizer is as large"));
  }
  CONVENE_ASSIGN_OR_RETURN(const std::string content, ReadFile(file));
  CONVENE_ASSIGN_OR_RETURN(const std::string config, ReadTokenizerConfig(ParentDirectory(file)));
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Make(content, config, file));
  const std::string compact = absl::StrCat(path, "/", kCompactVocabularyFile);
  return IsFile(compact) ? Cut(std::move(tokenizer), compact) : std::move(tokenizer);
}

}  // namespace convene::worker
