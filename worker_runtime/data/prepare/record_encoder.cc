#include "worker_runtime/data/prepare/record_encoder.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Buffers of more ids than this go when their record is done.
constexpr size_t kKeptIds = 4 << 20;
// Most tokens have more, so that a chunk's ids need not grow.
constexpr size_t kBytesOfToken = 3;
constexpr size_t kMaxWarnings = 16;

absl::uint128 HashOf(absl::string_view text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return absl::MakeUint128(hash.high64, hash.low64);
}

}  // namespace

TextEncoder::TextEncoder(const Tokenizer& tokenizer)
    : encoder_(tokenizer.NewEncoder(SpecialText::kAsText)) {
  std::vector<int32_t> of_byte, of_replacement;
  encoder_->Encode("\xE9", &of_byte);
  encoder_->Encode(kReplacementCharacter, &of_replacement);
  looks_for_lost_bytes_ = of_byte == of_replacement;
}

absl::Status TextEncoder::Encode(absl::string_view record, EncodedDocument* document) {
  document->Clear();
  encoder_->Encode(record, &document->ids);
  document->text_bytes = static_cast<int64_t>(record.size());
  if (looks_for_lost_bytes_ && !IsUtf8(record)) {
    looks_for_lost_bytes_ = false;
    document->warnings.emplace_back(
        "a text that is not UTF-8: the tokenizer has U+FFFD for such bytes, and their letters are "
        "lost. Convert the file first (`iconv -f latin1 -t utf8`, say)");
  }
  return absl::OkStatus();
}

RecordEncoder::RecordEncoder(Options options) : options_(std::move(options)) {
  if (options_.field.has_value()) field_.emplace(*options_.field);
}

absl::Status RecordEncoder::Encode(const Chunk& chunk, EncodedChunk* encoded) {
  *encoded = {
      .end = chunk.end, .file_offset = chunk.file_offset, .is_last_of_file = chunk.is_last_of_file};
  encoded->ids.reserve(chunk.text.size() / kBytesOfToken);
  for (const Record& record : chunk.records) {
    encoded->records.push_back(
        {.line = record.line, .is_first = record.is_first, .is_last = record.is_last});
    const absl::string_view text(chunk.text.data() + record.begin, record.size);
    absl::Status status = EncodeRecord(record, text, chunk.is_json_lines, encoded);
    if (absl::IsInvalidArgument(status)) {
      encoded->records.back().why_bad = std::string(status.message());
      const absl::string_view stripped = absl::StripAsciiWhitespace(text);
      encoded->records.back().is_array = chunk.is_json_lines && absl::StartsWith(stripped, "[");
      encoded->records.back().is_brace = chunk.is_json_lines && stripped == "{";
    } else if (!status.ok()) {
      return Annotate(status, absl::StrCat("line ", record.line));
    }
    encoded->records.back().ids_end = encoded->ids.size();
    for (const std::string& warning : std::exchange(document_.warnings, {})) {
      if (warned_.size() == kMaxWarnings || !warned_.insert(warning).second) continue;
      encoded->warnings.push_back(warning);
    }
    if (document_.ids.capacity() > kKeptIds) document_ = EncodedDocument();
    if (field_.has_value() && record.size > kKeptIds) field_.emplace(*options_.field);
  }
  return absl::OkStatus();
}

absl::Status RecordEncoder::EncodeRecord(const Record& record, absl::string_view text,
                                         bool is_json_lines, EncodedChunk* encoded) {
  if (record.is_too_long) {
    return absl::InvalidArgumentError(
        absl::StrCat("longer than ", options_.max_document_bytes, " bytes (--max-document-bytes)"));
  }
  if (is_json_lines && field_.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(text, field_->Find(text));
  }
  CONVENE_RETURN_IF_ERROR(options_.encoder->Encode(text, &document_));
  CONVENE_CHECK(document_.counted.empty() || document_.counted.size() == document_.ids.size());
  EncodedRecord& result = encoded->records.back();
  if (document_.ids.empty() && record.is_first && record.is_last) {
    result.is_empty = true;
    return absl::OkStatus();
  }
  if (options_.wants_hash) result.text_hash = HashOf(text);
  result.text_bytes = document_.text_bytes;
  AppendIds(record, encoded);
  return absl::OkStatus();
}

void RecordEncoder::AppendIds(const Record& record, EncodedChunk* encoded) {
  std::vector<int32_t>& ids = encoded->ids;
  const DocumentFrame& frame = options_.frame;
  const size_t begin = ids.size();
  if (record.is_first) ids.insert(ids.end(), frame.prefix.begin(), frame.prefix.end());
  const size_t own_begin = ids.size();
  ids.insert(ids.end(), document_.ids.begin(), document_.ids.end());
  const size_t own_end = ids.size();
  if (record.is_last) {
    ids.insert(ids.end(), frame.suffix.begin(), frame.suffix.end());
    const bool has_end = ids.size() > begin && ids.back() == frame.end;
    if (frame.end.has_value() && !has_end) ids.push_back(*frame.end);
  }
  if (document_.counted.empty() && encoded->counted.empty()) return;
  // From the first record on that counts in parts, each id has its byte; of instruction data the
  // frame does not count.
  std::vector<uint8_t>& counted = encoded->counted;
  counted.resize(begin, 1);
  const bool all_count = document_.counted.empty();
  counted.resize(own_begin, all_count ? 1 : 0);
  if (all_count) {
    counted.resize(own_end, 1);
  } else {
    counted.insert(counted.end(), document_.counted.begin(), document_.counted.end());
  }
  counted.resize(ids.size(), all_count ? 1 : 0);
}

}  // namespace convene::worker
