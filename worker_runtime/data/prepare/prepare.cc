#include "worker_runtime/data/prepare/prepare.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/check.h"
#include "tools/base/cpu_count.h"
#include "tools/base/files.h"
#include "tools/base/full_disk.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/byte_stream.h"
#include "worker_runtime/data/prepare/command_stream.h"
#include "worker_runtime/data/prepare/compact_output.h"
#include "worker_runtime/data/prepare/pipeline.h"
#include "worker_runtime/data/prepare/record_encoder.h"
#include "worker_runtime/data/prepare/sources.h"
#include "worker_runtime/data/prepare/token_output.h"
#include "worker_runtime/data/store/file_lock.h"
#include "worker_runtime/data/store/output_place.h"
#include "worker_runtime/data/store/token_file.h"
#include "worker_runtime/tokenizer/compact_tokenizer.h"

namespace convene::worker {
namespace {

// Another version of this program that makes other tokens of the same input has another number.
constexpr int kRulesVersion = 4;

// Enough that few threads go on while a journal is written, and that each of many has work; no
// more, because memory that is used again soon costs less.
constexpr size_t kInFlightBytesMin = 16 << 20;
constexpr size_t kInFlightBytesMax = 128 << 20;
constexpr size_t kInFlightBytesOfEncoder = 3 << 20;
// One part of so many of the work is the cutting of the vocabulary, where that is done.
constexpr int64_t kPartsOfCutting = 10;
// One thread that unpacks gzip keeps up with so many that encode.
constexpr int kEncodersOfReader = 8;
constexpr int kReadersMax = 8;

// Texts of any content one behind the other, so that no two lists give the same.
void AppendText(const std::string& text, std::string* key) {
  absl::StrAppend(key, text.size(), " ", text, "\n");
}

uint64_t HashOf(const std::string& text) { return XXH3_64bits(text.data(), text.size()); }

// Of all that decides about the tokens.
uint64_t KeyOf(const std::vector<SourceFile>& sources, const PrepareOptions& options) {
  const InputOptions& input = options.input;
  std::string key = absl::StrCat(
      kRulesVersion, " ", kTokenFileVersion, " ", absl::Hex(options.tokenizer->fingerprint()), " ",
      options.tokenizer->vocabulary_size(), " ", static_cast<int>(input.format), " ",
      input.max_document_bytes, " ", options.append_end_of_document, " ",
      options.add_special_tokens, " ", options.dedupe, " ", options.format.has_value(), "\n");
  AppendText(input.field, &key);
  AppendText(input.document_separator, &key);
  AppendText(options.format.has_value() ? options.format->key : "", &key);
  if (options.compact_vocabulary) AppendText("compact", &key);
  if (!input.through.empty()) AppendText(input.through, &key);
  for (const SourceFile& source : sources) {
    AppendText(source.path, &key);
    absl::StrAppend(&key, source.bytes, " ", source.modified_ns, "\n");
  }
  return HashOf(key);
}

bool IsParquet(const std::string& path) {
  char start[sizeof(kParquetMark) - 1] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(start, sizeof(start)) && std::memcmp(start, kParquetMark, sizeof(start)) == 0;
}

// The input's files, with the commands that read them.
absl::StatusOr<std::vector<SourceFile>> SourcesOf(const PrepareOptions& options) {
  const InputOptions& input = options.input;
  CONVENE_ASSIGN_OR_RETURN(std::vector<SourceFile> sources, ListSources(input.patterns));
  const std::vector<std::string> columns =
      options.format.has_value() ? options.format->fields
                                 : std::vector{input.field.substr(0, input.field.find('.'))};
  for (SourceFile& source : sources) {
    if (!input.through.empty()) {
      source.command = CommandFor(input.through, source.path);
    } else if (IsParquet(source.path)) {
      source.command = ParquetCommand(input.python, columns, source.path);
    } else if (absl::EndsWith(source.path, ".parquet")) {
      CONVENE_RETURN_IF_ERROR(Annotate(OpenFile(source.path, O_RDONLY).status(), "data"));
      return absl::InvalidArgumentError(absl::StrCat(
          "data: ", source.path, " does not begin as a Parquet file does: fetch it once more, or ",
          "give it another name if it holds text"));
    }
  }
  return sources;
}

absl::Status CheckOptions(const PrepareOptions& options) {
  CONVENE_CHECK(options.tokenizer != nullptr);
  const InputOptions& input = options.input;
  for (const absl::string_view key : absl::StrSplit(input.field, '.')) {
    if (key.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("data: the field '", input.field,
                                                     "' has an empty key; write it as in text or ",
                                                     "meta.text"));
    }
  }
  if (input.max_document_bytes < 1 || input.max_bad_lines < 0 || options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: max_document_bytes ", input.max_document_bytes, ", max_bad_lines ",
                     input.max_bad_lines, ", threads ", options.threads,
                     ": the first is 1 at least, the ", "others 0"));
  }
  if (options.append_end_of_document && !options.tokenizer->end_of_document().has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data: the tokenizer ", options.tokenizer_path, " (", options.tokenizer->kind(),
        ") names no token that ends a document; prepare ", "without one (--no-eod)"));
  }
  CONVENE_CHECK(!options.compact_vocabulary || !options.compact.has_value());
  if (!options.compact_vocabulary) return absl::OkStatus();
  return Annotate(IndispensableIds(*options.tokenizer).status(), "data");
}

std::vector<uint16_t> TokenBytes(const Tokenizer& tokenizer) {
  std::vector<uint16_t> bytes(tokenizer.vocabulary_size());
  std::string text;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    text.clear();
    tokenizer.AppendTokenBytes(id, &text);
    bytes[id] = static_cast<uint16_t>(std::min<size_t>(text.size(), UINT16_MAX));
  }
  return bytes;
}

TokenFileInfo InfoOf(const PrepareOptions& options, uint64_t key) {
  const Tokenizer& tokenizer = *options.tokenizer;
  return {.vocabulary_size = tokenizer.vocabulary_size(),
          .tokenizer = {.kind = tokenizer.kind(),
                        .path = options.tokenizer_path,
                        .fingerprint = tokenizer.fingerprint(),
                        .end_of_document = tokenizer.end_of_document(),
                        .compact = options.compact},
          .token_bytes = TokenBytes(tokenizer),
          .source_key = key,
          .has_counted = options.format.has_value()};
}

absl::StatusOr<std::unique_ptr<RecordEncoder>> NewEncoder(const PrepareOptions& options) {
  const Tokenizer& tokenizer = *options.tokenizer;
  RecordEncoder::Options of_records = {.wants_hash = options.dedupe,
                                       .max_document_bytes = options.input.max_document_bytes};
  if (options.append_end_of_document) of_records.frame.end = tokenizer.end_of_document();
  if (options.format.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(of_records.encoder, options.format->new_encoder());
  } else {
    of_records.encoder = std::make_unique<TextEncoder>(tokenizer);
    of_records.field = options.input.field;
    if (options.add_special_tokens) {
      of_records.frame.prefix.assign(tokenizer.prefix().begin(), tokenizer.prefix().end());
      of_records.frame.suffix.assign(tokenizer.suffix().begin(), tokenizer.suffix().end());
    }
  }
  return std::make_unique<RecordEncoder>(std::move(of_records));
}

PipelineOptions PipelineOf(const PrepareOptions& options) {
  const InputOptions& input = options.input;
  const int encoders = options.threads > 0 ? options.threads : CountUsableCpus();
  return {.readers = std::clamp(encoders / kEncodersOfReader, 1, kReadersMax),
          .encoders = encoders,
          .in_flight_bytes =
              std::clamp(encoders * kInFlightBytesOfEncoder, kInFlightBytesMin, kInFlightBytesMax),
          .format = options.format.has_value() ? InputFormat::kJsonLines : input.format,
          .field = input.field,
          .rules = {.separator = input.document_separator,
                    .max_document_bytes = input.max_document_bytes},
          .new_encoder = [&options] { return NewEncoder(options); }};
}

int64_t BytesOf(const std::vector<SourceFile>& sources) {
  int64_t bytes = 0;
  for (const SourceFile& source : sources) bytes += source.bytes;
  return bytes;
}

absl::Status Fill(const std::vector<SourceFile>& sources, const PrepareOptions& options,
                  const PrepareProgress& progress, TokenOutput* output) {
  std::vector<int64_t> file_begins = {0};  // in the bytes of all files
  for (const SourceFile& source : sources) {
    file_begins.push_back(file_begins.back() + source.bytes);
  }
  const int64_t all_bytes = file_begins.back();
  int64_t file = output->position().file;
  std::set<std::string> warnings;
  const auto take = [&](const EncodedChunk& chunk) -> absl::Status {
    CONVENE_RETURN_IF_ERROR(output->Take(sources[file], chunk));
    for (const std::string& warning : chunk.warnings) {
      if (!warnings.insert(warning).second) continue;
      spdlog::warn("data: {} (the first time in {})", warning, sources[file].path);
    }
    // A file is read to its end some chunks before its last one is taken.
    const int64_t done = file_begins[file] + chunk.file_offset;
    const int64_t cutting = options.compact_vocabulary ? done / kPartsOfCutting : 0;
    if (done < all_bytes) progress(done - cutting, all_bytes);
    if (chunk.is_last_of_file) ++file;
    return absl::OkStatus();
  };
  CONVENE_RETURN_IF_ERROR(RunPipeline(sources, output->position(), PipelineOf(options), take));
  CONVENE_RETURN_IF_ERROR(output->Finish());
  progress(all_bytes, all_bytes);
  return absl::OkStatus();
}

// `lock`: of `path`, so that the files beside it are this process's own.
absl::StatusOr<PrepareSummary> MakeTokenFile(const std::vector<SourceFile>& sources, uint64_t key,
                                             const std::string& path, const PrepareOptions& options,
                                             bool keeps_part, FileLock* lock,
                                             const PrepareProgress& progress) {
  // Before the output, so that an earlier part of it stays for whoever mends the input.
  CONVENE_RETURN_IF_ERROR(CheckHeads(sources, PipelineOf(options)));
  const auto tell = [&](int64_t done, int64_t total) {
    lock->Say(done, total);
    if (progress) progress(done, total);
  };
  const TokenFileInfo info = InfoOf(options, key);
  TokenOutput::Rewrite rewrite;
  if (options.compact_vocabulary) {
    rewrite = [&](const TokenSource& part, const std::string& name) {
      const int64_t all_bytes = BytesOf(sources);
      const int64_t cutting = all_bytes / kPartsOfCutting;
      return WriteCompact(part, *options.tokenizer, info, name, [&](int64_t done, int64_t total) {
        const double left = 1 - static_cast<double>(done) / static_cast<double>(total);
        const auto bytes_left = static_cast<int64_t>(left * static_cast<double>(cutting));
        if (all_bytes > 0) tell(all_bytes - std::max<int64_t>(bytes_left, 1), all_bytes);
      });
    };
  }
  absl::StatusOr<TokenOutput> output =
      TokenOutput::Open({.path = path,
                         .info = info,
                         .rewrite = rewrite,
                         // The part names its tokenizer's path, which no token depends on.
                         .journal_key = HashOf(absl::StrCat(key, " ", options.tokenizer_path)),
                         .dedupe = options.dedupe,
                         .max_bad_lines = options.input.max_bad_lines,
                         .journal_interval = options.journal_interval});
  // A part that cannot be opened just now (no descriptor is free, say) is left to the next call.
  CONVENE_RETURN_IF_ERROR(output.status());
  const absl::Status status = Fill(sources, options, tell, &*output);
  if (status.ok()) return output->summary();
  // No later call can use a part of an input that changed.
  if (keeps_part && output->can_resume() &&
      std::none_of(sources.begin(), sources.end(), IsChanged)) {
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "; ", path, ".partial keeps what is done, ",
                                     "and the same command goes on from there"));
  }
  TokenOutput::Discard(path);
  return status;
}

// Leaves out what stands beside `output` while it is made: a pattern may match it.
void RemoveSideFilesOf(const std::string& output, std::vector<SourceFile>* sources) {
  const std::filesystem::path output_path(output);
  const std::string name = output_path.filename().string();
  const std::filesystem::path parent = ParentDirectory(output);
  const auto is_side_file = [&](const SourceFile& source) {
    const std::filesystem::path path(source.path);
    std::string rest = path.filename().string();
    if (!absl::StartsWith(rest, name)) return false;
    rest.erase(0, name.size());
    std::error_code error;
    return (rest == ".lock" || rest == ".hashes" || rest == ".journal" || rest == ".journal.new" ||
            absl::StartsWith(rest, ".partial")) &&
           std::filesystem::equivalent(path.parent_path(), parent, error);
  };
  sources->erase(std::remove_if(sources->begin(), sources->end(), is_side_file), sources->end());
}

absl::Status CheckOutput(const std::string& output, const std::vector<SourceFile>& sources) {
  std::error_code error;
  // A rename would replace a device, and fail for a directory when all work is done.
  if (std::filesystem::exists(output, error) && !std::filesystem::is_regular_file(output, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: the output ", output, " is there already and is not a file; name a file"));
  }
  const std::string directory = ParentDirectory(output);
  if (std::filesystem::status(directory, error).type() == std::filesystem::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("data: there is no directory ", directory,
                                            " for the output ", output,
                                            "; make it, or name another output"));
  }
  for (const SourceFile& source : sources) {
    if (!std::filesystem::equivalent(output, source.path, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", output, " is an input, and would be replaced; name another output"));
  }
  return absl::OkStatus();
}

// Absent: the file is not there, not whole, or of another input.
std::optional<PreparedTokens> UseWhole(const std::string& path, uint64_t key) {
  absl::StatusOr<TokenFileUse> use = TokenFileUse::Begin(path);
  if (!use.ok()) return std::nullopt;
  const auto file = TokenFile::Open(path);
  if (!file.ok() || (*file)->source_key() != key) return std::nullopt;
  return PreparedTokens{path, *std::move(use)};
}

}  // namespace

absl::StatusOr<PreparedTokens> PrepareTokenFile(const PrepareOptions& options,
                                                const TokenCache& cache,
                                                const PrepareProgress& progress) {
  CONVENE_RETURN_IF_ERROR(CheckOptions(options));
  if (cache.directory.empty()) {
    return absl::FailedPreconditionError(
        "data: a text becomes a file of tokens, and neither XDG_CACHE_HOME nor HOME says where "
        "such files go: name a folder (--token-cache-dir)");
  }
  CONVENE_ASSIGN_OR_RETURN(const std::vector<SourceFile> sources, SourcesOf(options));
  // A file that fewer broken lines are allowed for must not be the one that more were.
  const uint64_t key =
      HashOf(absl::StrCat(KeyOf(sources, options), " ", options.input.max_bad_lines));
  const std::string path = CachedTokenPath(cache.directory, key);
  if (auto whole = UseWhole(path, key)) return *std::move(whole);
  constexpr char kWhere[] = "data: the folder of token files (--token-cache-dir)";
  CONVENE_RETURN_IF_ERROR(Annotate(MakeDirectories(cache.directory), kWhere));
  int64_t heard_total = 0;  // above 0: another process made progress meanwhile
  const auto hear = [&](int64_t done, int64_t total) {
    heard_total = total;
    if (progress) progress(done, total);
  };
  absl::StatusOr<FileLock> lock =
      FileLock::Take(absl::StrCat(path, ".lock"),
                     {.silence_max = cache.silence_max, .clock = cache.clock, .progress = hear});
  if (!lock.ok()) return Annotate(lock.status(), kWhere);
  if (auto whole = UseWhole(path, key)) {  // made while this process waited
    if (progress && heard_total > 0) progress(heard_total, heard_total);
    return *std::move(whole);
  }
  const absl::StatusOr<PrepareSummary> summary =
      MakeTokenFile(sources, key, path, options, /*keeps_part=*/false, &*lock, progress);
  if (TellsFullDisk(summary.status()) && absl::StrContains(summary.status().message(), path)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        summary.status().message(), "; make room there (`convene data cache --prune` removes the ",
        "token files that nobody uses), or name another folder (--token-cache-dir)"));
  }
  CONVENE_RETURN_IF_ERROR(summary.status());
  if (summary->bad_lines > 0) {
    spdlog::warn("data: {} broken lines are left out of {}; the first: {}", summary->bad_lines,
                 path, summary->first_bad_line);
  }
  NoteTokenFileSource(path, absl::StrCat(absl::StrJoin(options.input.patterns, " "), ", by ",
                                         options.tokenizer_path));
  CONVENE_ASSIGN_OR_RETURN(TokenFileUse use, TokenFileUse::Begin(path));
  PruneTokenCache(cache.directory, cache.bounds);
  return PreparedTokens{path, std::move(use)};
}

absl::StatusOr<PrepareSummary> PrepareOutput(const PrepareOptions& options,
                                             const std::string& output,
                                             const PrepareProgress& progress) {
  CONVENE_RETURN_IF_ERROR(CheckOptions(options));
  const std::string place = PlaceOfOutput(output);
  CONVENE_ASSIGN_OR_RETURN(std::vector<SourceFile> sources, SourcesOf(options));
  RemoveSideFilesOf(place, &sources);
  CONVENE_RETURN_IF_ERROR(CheckOutput(place, sources));
  CONVENE_ASSIGN_OR_RETURN(FileLock lock, LockOutput(place));
  absl::StatusOr<PrepareSummary> summary = MakeTokenFile(
      sources, KeyOf(sources, options), place, options, /*keeps_part=*/true, &lock, progress);
  unlink(LockPathOf(place).c_str());
  return summary;
}

}  // namespace convene::worker
