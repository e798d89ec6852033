#include "worker_runtime/data/store/convert.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/store/foreign_formats.h"
#include "worker_runtime/data/store/output_files.h"
#include "worker_runtime/data/store/token_blocks.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/data/store/token_values.h"

namespace convene::worker {
namespace {

constexpr int kMegatronWideVocabulary = 65500;
constexpr uint8_t kMegatronUint16 = 8;
constexpr uint8_t kMegatronInt32 = 4;
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

template <typename T>
absl::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Ids that are on their way, and who is told how far. Of a compact vocabulary they are the
// tokenizer's own.
class Conversion {
 public:
  Conversion(const TokenSource& source, const ConvertOptions& options)
      : source_(source), options_(options), compact_(source.tokenizer().compact) {}

  // Compares the source's checksums, before any of its ids is asked for.
  absl::Status Verify();
  // Sets vocabulary_size().
  absl::Status FindVocabulary();
  int vocabulary_size() const { return vocabulary_size_; }
  // REQUIRES: FindVocabulary was OK.
  TokenFileInfo Info() const;

  // Calls `use` with all tokens, some at a time.
  absl::Status ForEach(absl::FunctionRef<absl::Status(absl::Span<const int32_t> ids,
                                                      absl::Span<const uint8_t> counted)>
                           use);
  // The next tokens, as they stand in the source, become those that are written.
  void Take(absl::Span<int32_t> ids);

 private:
  void Expand(absl::Span<int32_t> ids) const;

  const TokenSource& source_;
  const ConvertOptions& options_;
  const std::optional<CompactVocabulary>& compact_;
  int vocabulary_size_ = 0;
  int64_t compared_ = 0;  // tokens; stays 0 where the source has no checksums
  int64_t done_ = 0;
};

absl::Status Conversion::Verify() {
  CONVENE_RETURN_IF_ERROR(Annotate(CheckDocumentEnds(source_), source_.path()));
  const int64_t tokens = source_.token_count();
  return source_.VerifyChecksums([&](int64_t done_tokens) {
    compared_ = tokens;
    if (options_.progress) options_.progress(done_tokens, 3 * tokens);
  });
}

absl::Status Conversion::ForEach(absl::FunctionRef<absl::Status(absl::Span<const int32_t> ids,
                                                                absl::Span<const uint8_t> counted)>
                                     use) {
  return ForEachBlock(source_, 0, source_.token_count(),
                      [&](int64_t, absl::Span<int32_t> ids, absl::Span<const uint8_t> counted) {
                        Take(ids);
                        return use(ids, counted);
                      });
}

void Conversion::Take(absl::Span<int32_t> ids) {
  if (compact_.has_value()) Expand(ids);
  done_ += static_cast<int64_t>(ids.size());
  if (options_.progress) {
    options_.progress(compared_ + done_, compared_ + 2 * source_.token_count());
  }
}

void Conversion::Expand(absl::Span<int32_t> ids) const {
  const std::vector<int32_t>& original_ids = compact_->original_ids;
  for (int32_t& id : ids) {
    id = static_cast<uint32_t>(id) < original_ids.size() ? original_ids[id] : -1;
  }
}

absl::Status Conversion::FindVocabulary() {
  int32_t largest = 0;
  bool has_bad = false;
  CONVENE_RETURN_IF_ERROR(
      ForEach([&](absl::Span<const int32_t> ids, absl::Span<const uint8_t> /*counted*/) {
        for (const int32_t id : ids) {
          largest = std::max(largest, id);
          has_bad = has_bad || id < 0;
        }
        return absl::OkStatus();
      }));
  if (has_bad || largest == kInt32Max) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_.path(), " has values that are no ids: negative, or above 2147483646"));
  }
  vocabulary_size_ = compact_.has_value() ? compact_->whole_size : source_.vocabulary_size();
  if (vocabulary_size_ == 0) vocabulary_size_ = options_.vocabulary_size;
  if (vocabulary_size_ == 0) vocabulary_size_ = largest + 1;
  if (largest < vocabulary_size_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(source_.path(), " has the id ", largest,
                                                 ", outside the vocabulary of ", vocabulary_size_));
}

TokenFileInfo Conversion::Info() const {
  const absl::Span<const uint16_t> token_bytes = source_.token_bytes();
  TokenFileInfo info = {.vocabulary_size = vocabulary_size_,
                        .tokenizer = source_.tokenizer(),
                        .token_bytes = {token_bytes.begin(), token_bytes.end()},
                        .source_key = source_.content_hash(),
                        .has_counted = source_.has_counted()};
  if (!compact_.has_value()) return info;
  TokenizerIdentity& tokenizer = info.tokenizer;
  tokenizer.compact.reset();
  tokenizer.fingerprint = compact_->whole_fingerprint;
  if (tokenizer.end_of_document.has_value()) Expand({&*tokenizer.end_of_document, 1});
  // Tokens that the file does not have stand for no bytes in it.
  info.token_bytes.assign(token_bytes.empty() ? 0 : vocabulary_size_, 0);
  for (size_t id = 0; id < token_bytes.size(); ++id) {
    info.token_bytes[compact_->original_ids[id]] = token_bytes[id];
  }
  return info;
}

absl::Status WriteConvene(const TokenSource& source, const std::string& path, Conversion* tokens) {
  OutputFiles files;
  CONVENE_ASSIGN_OR_RETURN(const std::string temporary, files.Reserve(path));
  CONVENE_RETURN_IF_ERROR(
      WriteDocuments(source, tokens->Info(), temporary,
                     [&](int64_t, absl::Span<int32_t> ids) { tokens->Take(ids); }));
  return files.Commit();
}

// Appends all tokens as values of `type`.
absl::Status AppendAll(TokenType type, Conversion* tokens, OutputFile* file, OutputFile* loss) {
  std::string bytes;
  return tokens->ForEach(
      [&](absl::Span<const int32_t> ids, absl::Span<const uint8_t> counted) -> absl::Status {
        bytes.clear();
        AppendTokens(type, ids, &bytes);
        if (loss != nullptr) {
          CONVENE_RETURN_IF_ERROR(
              loss->Append({reinterpret_cast<const char*>(counted.data()), counted.size()}));
        }
        return file->Append(bytes);
      });
}

absl::Status WriteMegatronIndex(const TokenSource& source, TokenType type, OutputFile* index) {
  const int64_t documents = source.document_count();
  std::string header(std::begin(kMegatronMagic), std::end(kMegatronMagic));
  absl::StrAppend(&header, BytesOf(uint64_t{1}),
                  BytesOf(type == TokenType::kU16 ? kMegatronUint16 : kMegatronInt32),
                  BytesOf(static_cast<uint64_t>(documents)),
                  BytesOf(static_cast<uint64_t>(documents) + 1));
  CONVENE_RETURN_IF_ERROR(index->Append(header));
  for (int64_t document = 0; document < documents; ++document) {
    const int64_t length = source.document_end(document) - source.document_begin(document);
    if (length > kInt32Max) {
      return absl::InvalidArgumentError(
          absl::StrCat(source.path(), ": document ", document, " has ", length,
                       " tokens; Megatron's index counts those of one document in int32"));
    }
    CONVENE_RETURN_IF_ERROR(index->Append(BytesOf(static_cast<int32_t>(length))));
  }
  for (int64_t document = 0; document < documents; ++document) {
    const int64_t offset = source.document_begin(document) * TokenBytes(type);
    CONVENE_RETURN_IF_ERROR(index->Append(BytesOf(offset)));
  }
  for (int64_t document = 0; document <= documents; ++document) {
    CONVENE_RETURN_IF_ERROR(index->Append(BytesOf(document)));
  }
  return absl::OkStatus();
}

absl::Status WriteMegatron(const TokenSource& source, const std::string& path, Conversion* tokens) {
  const MegatronPaths paths = MegatronPathsOf(path);
  const TokenType type =
      tokens->vocabulary_size() < kMegatronWideVocabulary ? TokenType::kU16 : TokenType::kI32;
  OutputFiles files;
  CONVENE_ASSIGN_OR_RETURN(OutputFile* const data, files.Create(paths.tokens));
  CONVENE_ASSIGN_OR_RETURN(OutputFile* const index, files.Create(paths.index));
  CONVENE_RETURN_IF_ERROR(WriteMegatronIndex(source, type, index));
  CONVENE_RETURN_IF_ERROR(AppendAll(type, tokens, data, nullptr));
  return files.Commit();
}

absl::Status WriteLlmc(const TokenSource& source, const std::string& path, Conversion* tokens) {
  if (absl::EndsWith(path, ".ds")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": by a name that ends in .ds it would be taken for nanotron's; give another one"));
  }
  const MegatronPaths megatron = MegatronPathsOf(path);
  if ((path == megatron.tokens || path == megatron.index) &&
      TokenFormatOf(megatron.index) == TokenFormat::kMegatron) {
    return absl::InvalidArgumentError(
        absl::StrCat(megatron.index, " is Megatron's, and its tokens are to stand in ",
                     megatron.tokens, ": neither can hold llm.c's; give another name"));
  }
  if (source.token_count() > kInt32Max) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.path(), " has ", source.token_count(),
                     " tokens; llm.c's header counts them in int32, so a file holds ", kInt32Max,
                     " at most: cut the source into several files"));
  }
  const bool is_wide = tokens->vocabulary_size() > 1 << 16;
  std::vector<int32_t> header(kLlmcHeaderBytes / sizeof(int32_t), 0);
  header[0] = is_wide ? kLlmcLlama3Magic : kLlmcGpt2Magic;
  header[1] = is_wide ? kLlmcLlama3Version : kLlmcGpt2Version;
  header[2] = static_cast<int32_t>(source.token_count());
  OutputFiles files;
  CONVENE_ASSIGN_OR_RETURN(OutputFile* const file, files.Create(path));
  CONVENE_RETURN_IF_ERROR(
      file->Append({reinterpret_cast<const char*>(header.data()), kLlmcHeaderBytes}));
  CONVENE_RETURN_IF_ERROR(
      AppendAll(is_wide ? TokenType::kU32 : TokenType::kU16, tokens, file, nullptr));
  return files.Commit();
}

absl::Status WriteNanotron(const TokenSource& source, const std::string& path, Conversion* tokens) {
  if (!absl::EndsWith(path, ".ds")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the name of nanotron's files must end in .ds"));
  }
  const TokenType type = tokens->vocabulary_size() <= 1 << 16 ? TokenType::kU16 : TokenType::kU32;
  OutputFiles files;
  OutputFile* loss = nullptr;
  if (source.has_counted()) {
    CONVENE_ASSIGN_OR_RETURN(loss, files.Create(NanotronLossPath(path)));
  } else {
    files.RemoveAtCommit(NanotronLossPath(path));
  }
  CONVENE_ASSIGN_OR_RETURN(OutputFile* const index, files.Create(NanotronIndexPath(path)));
  CONVENE_ASSIGN_OR_RETURN(OutputFile* const metadata, files.Create(NanotronMetadataPath(path)));
  CONVENE_ASSIGN_OR_RETURN(OutputFile* const data, files.Create(path));
  for (int64_t document = 0; document < source.document_count(); ++document) {
    CONVENE_RETURN_IF_ERROR(index->Append(BytesOf(source.document_end(document))));
  }
  std::string name = source.tokenizer().path;
  if (name.empty() || name.find('\n') != std::string::npos) name = "Unknown Tokenizer";
  CONVENE_RETURN_IF_ERROR(metadata->Append(absl::StrCat(
      name, "|", TokenBytes(type), "\n", source.token_count(), "\n", source.token_count(), " T")));
  CONVENE_RETURN_IF_ERROR(AppendAll(type, tokens, data, loss));
  return files.Commit();
}

// All files of tokens in `format` under the name `path`, whether they are there or not.
std::vector<std::string> FilesOf(const std::string& path, TokenFormat format) {
  switch (format) {
    case TokenFormat::kConvene:
    case TokenFormat::kLlmc:
      return {path};
    case TokenFormat::kMegatron: {
      const MegatronPaths paths = MegatronPathsOf(path);
      return {paths.tokens, paths.index};
    }
    case TokenFormat::kNanotron:
      break;
  }
  return {path, NanotronIndexPath(path), NanotronMetadataPath(path), NanotronLossPath(path)};
}

absl::Status CheckKeepsInput(const TokenSource& source, const std::string& path,
                             TokenFormat format) {
  for (const std::string& input : FilesOf(source.path(), source.format())) {
    for (const std::string& output : FilesOf(path, format)) {
      std::error_code error;
      if (!std::filesystem::equivalent(output, input, error)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          output, " is a file of the input, and would be replaced; name another output"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ConvertTokens(const TokenSource& source, const std::string& path,
                           const ConvertOptions& options) {
  CONVENE_RETURN_IF_ERROR(CheckKeepsInput(source, path, options.format));
  const bool keeps_counted =
      options.format == TokenFormat::kConvene || options.format == TokenFormat::kNanotron;
  if (source.has_counted() && !keeps_counted && !options.drop_counted) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path(), " says which tokens count in the loss, and ",
        options.format == TokenFormat::kMegatron ? "Megatron's" : "llm.c's",
        " format cannot: a training on it would learn all of them. Convert to this program's own "
        "format or nanotron's, or give --drop-counted"));
  }
  Conversion tokens(source, options);
  CONVENE_RETURN_IF_ERROR(tokens.Verify());
  CONVENE_RETURN_IF_ERROR(tokens.FindVocabulary());
  switch (options.format) {
    case TokenFormat::kConvene:
      return WriteConvene(source, path, &tokens);
    case TokenFormat::kMegatron:
      return WriteMegatron(source, path, &tokens);
    case TokenFormat::kLlmc:
      return WriteLlmc(source, path, &tokens);
    case TokenFormat::kNanotron:
      break;
  }
  return WriteNanotron(source, path, &tokens);
}

}  // namespace convene::worker
