// Cuts an input file into records, and hands them on in chunks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/prepare/byte_stream.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/sources.h"

namespace convene::worker {

// A document's text or JSON line, or a part of a long text.
struct Record {
  size_t begin = 0, size = 0;  // bytes of Chunk::text
  int64_t line = 0;            // from 1: the JSON line; of text the document in its file
  bool is_first = true;        // part of its document
  bool is_last = true;
  bool is_too_long = false;  // a JSON line above max_document_bytes, of which nothing is kept
};

// Where reading goes on: the beginning of a record.
struct InputPosition {
  int64_t file = 0;
  int64_t offset = 0;  // in the unpacked content
  int64_t line = 1;
  bool is_in_document = false;  // a later part of a long text comes next
  friend bool operator==(const InputPosition&, const InputPosition&) = default;
};

struct Chunk {
  bool is_json_lines = false;
  std::string text;
  std::vector<Record> records;
  InputPosition end;        // behind its last record; the next file's beginning after a file's end
  int64_t file_offset = 0;  // bytes of the file, as it lies on the disk, that were read
  bool is_last_of_file = false;
};

// How a file's records are found.
struct RecordRules {
  bool is_json_lines = false;
  std::string separator;  // of text; empty: the file is one document
  int64_t max_document_bytes = 0;
  // Sizes that tests make small.
  size_t chunk_bytes = 1 << 20;  // a chunk ends with the first record that reaches it
  size_t chunk_records = 16384;  // or that is so many: short ones take more memory than their text
  size_t part_bytes = 4 << 20;   // the longest part of a text without separator
};

// The records of one file. Where a chunk ends does not change the records. Not thread-safe.
class ChunkReader {
 public:
  // Begins at `start`, which an earlier reader of the same file gave, or at the file's beginning
  // ({.file = start.file}). Errors: ByteStream::Open's and Skip's.
  static absl::StatusOr<std::unique_ptr<ChunkReader>> Open(const SourceFile& source,
                                                           const InputPosition& start,
                                                           const RecordRules& rules);

  // The next chunk, perhaps without records. REQUIRES: the last one was not the file's last.
  // InvalidArgument: a document between two separators is above max_document_bytes. Else as
  // ByteStream::Read.
  absl::Status Next(Chunk* chunk);

 private:
  ChunkReader(std::unique_ptr<ByteStream> stream, const SourceFile& source,
              const InputPosition& start, const RecordRules& rules)
      : stream_(std::move(stream)), source_(source), position_(start), rules_(rules) {}

  absl::Status NextSeparated(Chunk* chunk);
  absl::Status NextPart(Chunk* chunk);
  // The record of chunk->text[begin, end), unless it is a blank line.
  absl::Status AddRecord(size_t begin, size_t end, Chunk* chunk);
  // A chunk of one line that is too long, with which chunk->text begins; passes over the line.
  absl::Status SkipLine(Chunk* chunk);
  // Ends the chunk before text[used], which the next chunk begins with.
  void Finish(size_t used, bool at_end, Chunk* chunk);

  const std::unique_ptr<ByteStream> stream_;
  const SourceFile source_;
  InputPosition position_;  // of the first byte of carry_
  const RecordRules rules_;
  std::string carry_;  // read, but in no record yet
};

// PURE. Where a text that begins with `text`, and is longer than it, may be cut so that no token
// reaches over the cut. In the later half of `text` that is
// - behind the last line's end that stands alone between a character that is no space and a letter
//   or digit: the patterns of byte level tokenizers take such a line's end by itself, or with the
//   marks before it, and end there;
// - else before the last ASCII space or line's end behind a letter or digit: no pattern goes on
// from
//   a word into a space, and a pattern takes spaces by the text behind them alone. (A cut behind
//   "\r\n" is wrong: GPT-2's \s+(?!\S) takes both as one piece at a text's end, and as two before a
//   letter.)
// A text without such a place is cut before its last character, perhaps within a token. Above 0 for
// texts of at least 4 bytes. Byte level tokenizers that put no space before a text give the same
// ids for the parts; SentencePiece begins each part as it begins a text.
size_t CutOfText(absl::string_view text);

// Whether kAuto (options.h) means JSON lines for this file. A line above `max_document_bytes` is
// taken for a text's. InvalidArgument: the first two lines are JSON objects, and the first has no
// text at `field` (in JsonField's words). Else ByteStream's errors.
absl::StatusOr<bool> HoldsJsonLines(const SourceFile& source, const std::string& field,
                                    int64_t max_document_bytes);

}  // namespace convene::worker
