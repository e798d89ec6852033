#include "worker_runtime/data/prepare/token_output.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

std::string PartOf(const std::string& path) { return path + ".partial"; }
std::string RewrittenOf(const std::string& path) { return path + ".partial.rewritten"; }
std::string JournalOf(const std::string& path) { return path + ".journal"; }
std::string NewJournalOf(const std::string& path) { return path + ".journal.new"; }
std::string HashesOf(const std::string& path) { return path + ".hashes"; }

// Replaces `path`.journal by a whole one, by a name that a killed process may leave and the next
// one takes.
absl::Status WriteJournal(const std::string& path, const std::string& text) {
  const std::string temporary = NewJournalOf(path);
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC));
  CONVENE_RETURN_IF_ERROR(WriteAll(fd.get(), text, temporary));
  CONVENE_RETURN_IF_ERROR(SyncFile(fd.get(), temporary));
  CONVENE_RETURN_IF_ERROR(RenameFile(temporary, JournalOf(path)));
  return SyncDirectory(ParentDirectory(path));
}

void RemoveSideFiles(const std::string& path) {
  for (const std::string& file : {JournalOf(path), NewJournalOf(path), HashesOf(path)}) {
    unlink(file.c_str());
  }
}

int64_t CountOf(absl::Span<const uint8_t> counted) {
  int64_t count = 0;
  for (const uint8_t one : counted) count += one;
  return count;
}

}  // namespace

absl::StatusOr<TokenOutput> TokenOutput::Open(Options options) {
  TokenOutput output(std::move(options));
  const absl::Status resumed = output.Resume();
  // No journal, or none that fits, is the usual beginning. Any other trouble must not cost the
  // part.
  const bool is_of_no_use = absl::IsNotFound(resumed) || absl::IsDataLoss(resumed) ||
                            absl::IsInvalidArgument(resumed) || absl::IsFailedPrecondition(resumed);
  if (is_of_no_use) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(PartOf(output.options_.path), error);
    if (!error && !absl::IsNotFound(resumed)) {
      spdlog::warn("data: {} ({}) is of no use: {}; it is begun anew", PartOf(output.options_.path),
                   HumanBytes(static_cast<double>(bytes)), std::string(resumed.message()));
    }
    const absl::Status begun = output.BeginAnew();
    if (!begun.ok()) {
      Discard(output.options_.path);
      return begun;
    }
  } else {
    CONVENE_RETURN_IF_ERROR(resumed);
  }
  output.last_sync_ = output.options_.clock->Now();
  return output;
}

absl::Status TokenOutput::Resume() {
  CONVENE_ASSIGN_OR_RETURN(const std::string text, ReadFile(JournalOf(options_.path)));
  CONVENE_ASSIGN_OR_RETURN(PrepareJournal journal, ParseJournal(text));
  if (journal.key != options_.journal_key) {
    return absl::FailedPreconditionError(
        "it was made of another input or by other flags, or by another version");
  }
  // Made when more of them were allowed: the new beginning names the one that is too many.
  if (journal.summary.bad_lines > options_.max_bad_lines) {
    return absl::FailedPreconditionError("it leaves out more broken lines than are allowed now");
  }
  const absl::StatusOr<std::unique_ptr<TokenFile>> whole = TokenFile::Open(PartOf(options_.path));
  if (whole.ok() && (*whole)->token_count() == journal.summary.tokens) {
    // An earlier process ended between the last byte and the name.
    is_whole_ = true;
    journal_ = std::move(journal);
    journal_.summary.resumed = true;
    return absl::OkStatus();
  }
  CONVENE_ASSIGN_OR_RETURN(writer_,
                           TokenFileWriter::Resume(PartOf(options_.path), journal.writer_state));
  if (options_.dedupe) {
    CONVENE_ASSIGN_OR_RETURN(
        seen_, SeenDocuments::Resume(HashesOf(options_.path), journal.seen_documents));
  }
  journal_ = std::move(journal);
  journal_.summary.resumed = true;
  return absl::OkStatus();
}

absl::Status TokenOutput::BeginAnew() {
  writer_.reset();
  seen_.reset();
  Discard(options_.path);
  CONVENE_ASSIGN_OR_RETURN(writer_, TokenFileWriter::Create(PartOf(options_.path), options_.info));
  if (options_.dedupe) {
    CONVENE_ASSIGN_OR_RETURN(seen_, SeenDocuments::Create(HashesOf(options_.path)));
  }
  journal_.key = options_.journal_key;
  return absl::OkStatus();
}

absl::Status TokenOutput::CountBadLine(const SourceFile& source, const EncodedRecord& record) {
  const std::string text =
      absl::StrCat("data: ", source.path, ", line ", record.line, ": ", record.why_bad);
  PrepareSummary& summary = journal_.summary;
  if (++summary.bad_lines == 1) summary.first_bad_line = text;
  if (summary.bad_lines <= options_.max_bad_lines) return absl::OkStatus();
  if (options_.max_bad_lines == 0) {
    const char* const hint =
        record.is_array
            ? ". Each line must be an object (`jq -c '.[]'` makes such lines of an array)"
        : record.is_brace ? ". Each object must be one line (`jq -c .` makes such lines)"
                          : "";
    return absl::InvalidArgumentError(absl::StrCat(
        text, "; mend the line, or ", options_.info.has_counted ? "(not of pairs of answers) " : "",
        "leave out such lines by --max-bad-lines N", hint));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text, "; this is broken line ", summary.bad_lines, ", and --max-bad-lines allows ",
      options_.max_bad_lines, ". The first one: ", summary.first_bad_line));
}

absl::Status TokenOutput::Add(const EncodedChunk& chunk, size_t record_index, size_t ids_begin) {
  const EncodedRecord& record = chunk.records[record_index];
  const size_t size = record.ids_end - ids_begin;
  const auto ids = absl::MakeConstSpan(chunk.ids).subspan(ids_begin, size);
  absl::Span<const uint8_t> counted;
  if (!chunk.counted.empty()) counted = absl::MakeConstSpan(chunk.counted).subspan(ids_begin, size);
  CONVENE_RETURN_IF_ERROR(writer_->Append(ids, counted));
  PrepareSummary& summary = journal_.summary;
  summary.tokens += static_cast<int64_t>(size);
  summary.counted_tokens += counted.empty() ? static_cast<int64_t>(size) : CountOf(counted);
  summary.text_bytes += record.text_bytes;
  if (!record.is_last) return absl::OkStatus();
  ++summary.documents;
  return writer_->EndDocument();
}

absl::Status TokenOutput::Take(const SourceFile& source, const EncodedChunk& chunk) {
  size_t ids_begin = 0;
  for (size_t i = 0; i < chunk.records.size(); ++i) {
    const EncodedRecord& record = chunk.records[i];
    // The parts of a long text go on whatever their hashes are.
    const bool is_whole = record.is_first && record.is_last;
    if (!record.why_bad.empty()) {
      CONVENE_RETURN_IF_ERROR(CountBadLine(source, record));
    } else if (record.is_empty) {
      ++journal_.summary.empty_documents;
    } else if (seen_.has_value() && is_whole && !seen_->Insert(record.text_hash)) {
      ++journal_.summary.duplicates;
    } else {
      CONVENE_RETURN_IF_ERROR(Add(chunk, i, ids_begin));
    }
    ids_begin = record.ids_end;
  }
  journal_.position = chunk.end;
  if (options_.clock->Now() - last_sync_ < options_.journal_interval) return absl::OkStatus();
  return Sync();
}

absl::Status TokenOutput::Sync() {
  if (seen_.has_value()) {
    CONVENE_RETURN_IF_ERROR(seen_->Sync());
    journal_.seen_documents = seen_->count();
  }
  CONVENE_ASSIGN_OR_RETURN(journal_.writer_state, writer_->Sync());
  CONVENE_RETURN_IF_ERROR(WriteJournal(options_.path, JournalText(journal_)));
  last_sync_ = options_.clock->Now();
  return absl::OkStatus();
}

bool TokenOutput::can_resume() const {
  // Where only the last sync of the directory failed, the part has the output's name already.
  return access(JournalOf(options_.path).c_str(), F_OK) == 0 &&
         access(PartOf(options_.path).c_str(), F_OK) == 0;
}

absl::Status TokenOutput::Finish() {
  if (journal_.summary.documents == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: there is no document in the input (", journal_.summary.bad_lines,
                     " broken lines, ", journal_.summary.empty_documents, " empty documents)"));
  }
  if (is_whole_) {
    // The process that wrote its last byte may have ended before this.
    CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(PartOf(options_.path), O_RDWR));
    CONVENE_RETURN_IF_ERROR(SyncFile(fd.get(), PartOf(options_.path)));
  } else {
    // With it a part that is whole, but has no name yet, has its summary.
    CONVENE_RETURN_IF_ERROR(Sync());
    CONVENE_RETURN_IF_ERROR(writer_->Finish());
  }
  std::string finished = PartOf(options_.path);
  if (options_.rewrite != nullptr) {
    CONVENE_ASSIGN_OR_RETURN(const auto part, TokenFile::Open(finished));
    finished = RewrittenOf(options_.path);
    CONVENE_RETURN_IF_ERROR(options_.rewrite(*part, finished));
  }
  CONVENE_RETURN_IF_ERROR(RenameFile(finished, options_.path));
  CONVENE_RETURN_IF_ERROR(SyncDirectory(ParentDirectory(options_.path)));
  Discard(options_.path);
  return absl::OkStatus();
}

void TokenOutput::Discard(const std::string& path) {
  RemoveSideFiles(path);
  TokenFileWriter::Discard(PartOf(path));
  TokenFileWriter::Discard(RewrittenOf(path));
}

}  // namespace convene::worker
