// The input of `prepare` and how tokens are made of it, for the command and the trainer alike.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker_runtime/data/prepare/document_encoder.h"
#include "worker_runtime/data/store/token_source.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

enum class InputFormat {
  // JSON lines where the name (without .gz, .zst, .zstd) ends in .jsonl, .jsonlines, .ndjson or
  // .json, or where the first line is a JSON object with the field. Else text, unless two objects
  // without the field begin the file: that is refused.
  kAuto,
  kText,
  kJsonLines,
};

// Each file may be packed by gzip or zstd, whatever its name is, or be a Parquet file.
struct InputOptions {
  // Files or glob patterns. Patterns in the given order, the files of one sorted by bytes; a file
  // that two patterns match counts once, empty files not at all.
  std::vector<std::string> patterns;
  InputFormat format = InputFormat::kAuto;
  // A command of the shell that writes the content of a file, {} in it, to its standard output:
  // JSON lines, but with kText. "": files are read as they are.
  std::string through;
  std::string python = "python3";  // with pyarrow, for Parquet files: their rows are JSON lines
  // The text of a JSON line; dots lead into objects ("meta.text").
  std::string field = "text";
  // Of text files: a document ends where this text stands, which belongs to no document. Empty: one
  // file is one document.
  std::string document_separator;
  // A longer JSON line is a bad line, a longer document between two separators is an error. Without
  // a separator a text file may have any length.
  int64_t max_document_bytes = 32 << 20;
  // This many broken JSON lines are left out; one more is an error.
  int64_t max_bad_lines = 0;
};

// Documents by another rule than "the text of a field": instruction data. The records are whole
// JSON lines, whatever the file's name is.
struct DocumentFormat {
  // Enters the key of a prepared file: all that decides about ids beside the tokenizer and the
  // input, such as the chat template's text.
  std::string key;
  // The keys of a record that are read: of a Parquet file no other column is. Empty: all are.
  std::vector<std::string> fields;
  // Called once a thread, from any thread.
  std::function<absl::StatusOr<std::unique_ptr<DocumentEncoder>>()> new_encoder;
};

struct PrepareOptions {
  InputOptions input;

  // Not owned; must outlive the call. REQUIRES: not null.
  const Tokenizer* tokenizer = nullptr;
  std::string tokenizer_path;  // for people, kept in the file
  // Where `tokenizer` is a compact one (MakeCompactTokenizer): its vocabulary, kept in the file.
  std::optional<CompactVocabulary> compact;
  // Cuts the vocabulary to the tokens that the texts use, and IndispensableIds; takes the disk's
  // room for the tokens twice. Not with `compact`.
  bool compact_vocabulary = false;
  std::optional<DocumentFormat> format;  // absent: the text itself

  // Ends each document with Tokenizer::end_of_document(), unless it ends so already.
  // FailedPrecondition where the tokenizer names none.
  bool append_end_of_document = true;
  // Puts Tokenizer::prefix() and suffix() around the text. No effect with `format`.
  bool add_special_tokens = false;
  // Leaves out documents whose record (text or JSON line's text) was there before, by its XXH3-128.
  // Takes 20 to 60 bytes of memory a document.
  bool dedupe = false;

  int threads = 0;  // that encode; 0: as many as this process has cores
  // How much work a kill loses.
  absl::Duration journal_interval = absl::Seconds(5);
};

// The end of the input, in numbers.
struct PrepareSummary {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t counted_tokens = 0;  // in the loss; all of them but for instruction data
  int64_t text_bytes = 0;      // that the tokens stand for
  int64_t duplicates = 0;
  int64_t empty_documents = 0;  // without text: left out
  int64_t bad_lines = 0;
  std::string first_bad_line;  // "data: a.jsonl, line 7: ..."
  bool resumed = false;        // a part was there already
  friend bool operator==(const PrepareSummary&, const PrepareSummary&) = default;
};

}  // namespace convene::worker
