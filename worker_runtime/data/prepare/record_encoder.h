// PURE. Records to tokens, chunk by chunk.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/prepare/chunk_reader.h"
#include "worker_runtime/data/prepare/document_encoder.h"
#include "worker_runtime/data/prepare/json_field.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// The ids of a record's text, by one tokenizer; text within a document is text. The first text that
// is not UTF-8 gets a warning, unless the tokenizer keeps all bytes.
class TextEncoder final : public DocumentEncoder {
 public:
  explicit TextEncoder(const Tokenizer& tokenizer);
  absl::Status Encode(absl::string_view record, EncodedDocument* document) override;

 private:
  const std::unique_ptr<Encoder> encoder_;
  bool looks_for_lost_bytes_ = false;  // until one was found
};

struct EncodedRecord {
  int64_t line = 0;  // as in Record
  bool is_first = true, is_last = true;
  bool is_empty = false;  // no text, no tokens
  bool is_array = false;  // a JSON line that begins with one
  bool is_brace = false;  // a JSON line that is "{" alone
  std::string why_bad;    // not empty: a broken line, without tokens
  size_t ids_end = 0;     // in EncodedChunk::ids; begins where the record before it ends
  int64_t text_bytes = 0;
  absl::uint128 text_hash = 0;  // XXH3-128 of the text, where it was asked for
};

struct EncodedChunk {
  std::vector<int32_t> ids;
  // Empty, or one for each id: whether it counts in the loss.
  std::vector<uint8_t> counted;
  std::vector<EncodedRecord> records;
  // EncodedDocument's that this RecordEncoder did not give before: sixteen in all.
  std::vector<std::string> warnings;
  InputPosition end;  // these three as in Chunk
  int64_t file_offset = 0;
  bool is_last_of_file = false;
};

// The ids around each document's own.
struct DocumentFrame {
  std::vector<int32_t> prefix, suffix;
  // Ends the document, behind the suffix, unless it is the last id already.
  std::optional<int32_t> end;
};

// Not thread-safe; keeps its buffers, but none that an uncommonly long record made.
class RecordEncoder {
 public:
  struct Options {
    std::unique_ptr<DocumentEncoder> encoder;
    DocumentFrame frame;
    // The encoder gets a JSON line's text at this path; absent: the line.
    std::optional<std::string> field;
    bool wants_hash = false;
    int64_t max_document_bytes = 0;  // for the words
  };
  explicit RecordEncoder(Options options);

  // Replaces `encoded`. Returns the encoder's status where that is no InvalidArgument, with the
  // line; a broken line is an EncodedRecord.
  absl::Status Encode(const Chunk& chunk, EncodedChunk* encoded);

 private:
  absl::Status EncodeRecord(const Record& record, absl::string_view text, bool is_json_lines,
                            EncodedChunk* encoded);
  void AppendIds(const Record& record, EncodedChunk* encoded);

  const Options options_;
  std::optional<JsonField> field_;
  EncodedDocument document_;
  std::set<std::string> warned_;
};

}  // namespace convene::worker
