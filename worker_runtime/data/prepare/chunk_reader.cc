#include "worker_runtime/data/prepare/chunk_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/json_field.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kHeadBytes = 4 << 10;  // enough to see that a file does not begin with "{"
// The mark with which some Windows programs begin a file.
constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";

bool IsBlank(absl::string_view line) { return absl::StripAsciiWhitespace(line).empty(); }

bool IsCharacterStart(char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }

// The kinds of the character that begins at byte `at`; absent: it is no UTF-8, or not whole.
std::optional<uint8_t> KindsAt(absl::string_view text, size_t at) {
  const Character character = CharacterAt(text, at);
  if (!IsUtf8(text.substr(at, character.bytes))) return std::nullopt;
  return KindTable::Get().Of(character.code);
}

// Of the one that ends before byte `end`.
std::optional<uint8_t> KindsBefore(absl::string_view text, size_t end) {
  const size_t at = PreviousCharacter(text, end);
  return CharacterAt(text, at).bytes == end - at ? KindsAt(text, at) : std::nullopt;
}

bool IsWord(std::optional<uint8_t> kinds) {
  return (kinds.value_or(0) & (Kind::kLetter | Kind::kNumber)) != 0;
}

bool IsOtherThanSpace(std::optional<uint8_t> kinds) {
  return (kinds.value_or(Kind::kSpace) & Kind::kSpace) == 0;
}

// Appends up to `bytes` to `text`; false at the end of the content.
absl::StatusOr<bool> ReadMore(size_t bytes, ByteStream* stream, std::string* text) {
  const size_t old_size = text->size();
  text->resize(old_size + bytes);
  const absl::StatusOr<size_t> n = stream->Read(text->data() + old_size, bytes);
  if (!n.ok()) return n.status();
  text->resize(old_size + *n);
  return *n == bytes;
}

// The two lines with which a file begins that may be JSON lines: fewer where it has fewer, or where
// they do not end within about `most_bytes`; none of another file.
absl::StatusOr<std::vector<std::string>> FirstObjectLines(ByteStream* stream, size_t most_bytes) {
  std::string head;
  bool has_more = true;
  int64_t ends = 0;
  while (has_more && ends < 2 && head.size() <= most_bytes) {
    const auto begin = static_cast<std::ptrdiff_t>(head.size());
    const size_t bytes = begin == 0 ? kHeadBytes : kReadBytes;
    CONVENE_ASSIGN_OR_RETURN(has_more, ReadMore(bytes, stream, &head));
    if (begin == 0 && absl::StartsWith(head, kByteOrderMark)) head.erase(0, 3);
    if (!absl::StartsWith(head, "{")) return std::vector<std::string>();
    ends += std::count(head.begin() + begin, head.end(), '\n');
  }
  std::vector<std::string> lines = absl::StrSplit(head, absl::MaxSplits('\n', 2));
  lines.resize(std::min<int64_t>(2, ends + (has_more ? 0 : 1)));
  return lines;
}

}  // namespace

size_t CutOfText(absl::string_view text) {
  const size_t least = text.size() / 2;
  for (size_t cut = text.size() - 1; cut > least && cut >= 2; --cut) {
    if (text[cut - 1] == '\n' && IsWord(KindsAt(text, cut)) &&
        IsOtherThanSpace(KindsBefore(text, cut - 1))) {
      return cut;
    }
  }
  for (size_t cut = text.size() - 1; cut > least; --cut) {
    if (absl::ascii_isspace(text[cut]) && IsWord(KindsBefore(text, cut))) return cut;
  }
  // A character has four bytes at most.
  for (size_t cut = text.size() - 1; cut + 4 > text.size() && cut > 0; --cut) {
    if (IsCharacterStart(text[cut])) return cut;
  }
  return text.size();
}

absl::StatusOr<std::unique_ptr<ChunkReader>> ChunkReader::Open(const SourceFile& source,
                                                               const InputPosition& start,
                                                               const RecordRules& rules) {
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<ByteStream> stream, ByteStream::Open(source));
  CONVENE_RETURN_IF_ERROR(stream->Skip(start.offset));
  return std::unique_ptr<ChunkReader>(new ChunkReader(std::move(stream), source, start, rules));
}

absl::Status ChunkReader::Next(Chunk* chunk) {
  *chunk = {.is_json_lines = rules_.is_json_lines, .text = std::exchange(carry_, std::string())};
  const bool is_one_document = !rules_.is_json_lines && rules_.separator.empty();
  return is_one_document ? NextPart(chunk) : NextSeparated(chunk);
}

void ChunkReader::Finish(size_t used, bool at_end, Chunk* chunk) {
  carry_.assign(chunk->text, used);
  chunk->text.resize(used);
  // The room for a whole chunk of text must not wait with a few bytes in it.
  if (used < chunk->text.capacity() / 2) chunk->text.shrink_to_fit();
  position_.offset += static_cast<int64_t>(used);
  if (at_end) position_ = {.file = position_.file + 1};
  chunk->end = position_;
  chunk->is_last_of_file = at_end;
  chunk->file_offset = stream_->file_offset();
}

absl::Status ChunkReader::NextPart(Chunk* chunk) {
  std::string& text = chunk->text;
  bool has_more = true;
  // One byte more than a part tells whether the document goes on behind it.
  while (has_more && text.size() <= rules_.part_bytes) {
    CONVENE_ASSIGN_OR_RETURN(
        has_more,
        ReadMore(std::min(kReadBytes, rules_.part_bytes + 1 - text.size()), stream_.get(), &text));
  }
  const bool is_last = text.size() <= rules_.part_bytes;
  const size_t used = is_last ? text.size() : CutOfText(text);
  chunk->records.push_back({.size = used,
                            .line = position_.line,
                            .is_first = !position_.is_in_document,
                            .is_last = is_last});
  position_.is_in_document = !is_last;
  Finish(used, is_last, chunk);
  return absl::OkStatus();
}

absl::Status ChunkReader::SkipLine(Chunk* chunk) {
  chunk->records.push_back({.line = position_.line, .is_too_long = true});
  ++position_.line;
  std::string& text = chunk->text;
  bool has_more = true;
  size_t end = text.find('\n');
  while (end == std::string::npos && has_more) {
    position_.offset += static_cast<int64_t>(text.size());
    text.clear();
    CONVENE_ASSIGN_OR_RETURN(has_more, ReadMore(kReadBytes, stream_.get(), &text));
    end = text.find('\n');
  }
  const size_t used = end == std::string::npos ? text.size() : end + 1;
  text.erase(0, used);
  position_.offset += static_cast<int64_t>(used);
  // The rest of `text` stays for the next chunk.
  Finish(0, false, chunk);
  return absl::OkStatus();
}

absl::Status ChunkReader::AddRecord(size_t begin, size_t end, Chunk* chunk) {
  absl::string_view record(chunk->text.data() + begin, end - begin);
  const int64_t line = position_.line++;
  const bool is_too_long = static_cast<int64_t>(record.size()) > rules_.max_document_bytes;
  if (is_too_long && !rules_.is_json_lines) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", source_.path, ": document ", line, " of the file is longer than ",
                     rules_.max_document_bytes,
                     " bytes; is the separator right? If it is, give a larger "
                     "--max-document-bytes"));
  }
  if (rules_.is_json_lines) {
    // Windows' line ends.
    absl::ConsumeSuffix(&record, "\r");
    if (line == 1) absl::ConsumePrefix(&record, kByteOrderMark);
    if (IsBlank(record)) return absl::OkStatus();
  }
  chunk->records.push_back({.begin = static_cast<size_t>(record.data() - chunk->text.data()),
                            .size = is_too_long ? 0 : record.size(),
                            .line = line,
                            .is_too_long = is_too_long});
  return absl::OkStatus();
}

absl::Status ChunkReader::NextSeparated(Chunk* chunk) {
  const std::string separator = rules_.is_json_lines ? "\n" : rules_.separator;
  const size_t longest = rules_.max_document_bytes + separator.size();
  std::string& text = chunk->text;
  // Growing it piece by piece would copy the chunk several times.
  text.reserve(rules_.chunk_bytes + 2 * kReadBytes);
  size_t begin = 0;    // of the record that is looked for
  size_t scanned = 0;  // no separator begins before it
  bool has_more = true;
  const auto is_full = [&] {
    return begin >= rules_.chunk_bytes || chunk->records.size() >= rules_.chunk_records;
  };
  while (true) {
    size_t end = 0;
    while (!is_full() && (end = text.find(separator, scanned)) != std::string::npos) {
      CONVENE_RETURN_IF_ERROR(AddRecord(begin, end, chunk));
      begin = scanned = end + separator.size();
    }
    if (is_full() || !has_more) break;
    if (text.size() - begin > longest) {
      // AddRecord has the words for a text. A line goes as far as it was read; the chunk ends
      // before it.
      if (!rules_.is_json_lines) return AddRecord(begin, text.size(), chunk);
      if (begin > 0) break;
      return SkipLine(chunk);
    }
    // A separator may have begun in the bytes that are there.
    scanned = std::max(begin, text.size() - std::min(text.size(), separator.size() - 1));
    CONVENE_ASSIGN_OR_RETURN(has_more, ReadMore(kReadBytes, stream_.get(), &text));
  }
  const bool at_end = !has_more && !is_full();
  if (at_end && begin < text.size()) {
    CONVENE_RETURN_IF_ERROR(AddRecord(begin, text.size(), chunk));
    begin = text.size();
  }
  Finish(begin, at_end, chunk);
  return absl::OkStatus();
}

absl::StatusOr<bool> HoldsJsonLines(const SourceFile& source, const std::string& field,
                                    int64_t max_document_bytes) {
  absl::string_view name = source.path;
  for (const absl::string_view packed : {".gz", ".zst", ".zstd"}) {
    if (absl::ConsumeSuffix(&name, packed)) break;
  }
  for (const absl::string_view suffix : {".jsonl", ".jsonlines", ".ndjson", ".json"}) {
    if (absl::EndsWithIgnoreCase(name, suffix)) return true;
  }
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> stream, ByteStream::Open(source));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<std::string> lines,
                           FirstObjectLines(stream.get(), max_document_bytes));
  if (lines.empty()) return false;
  JsonField reader(field);
  const absl::Status found = reader.Find(lines[0]).status();
  if (found.ok()) return true;
  const absl::StatusOr<std::vector<std::string>> keys = KeysOfJsonObject(lines[0]);
  if (!keys.ok() || lines.size() < 2 || !KeysOfJsonObject(lines[1]).ok()) return false;
  return absl::InvalidArgumentError(absl::StrCat(
      "data: ", source.path, " has JSON objects as lines, but the first has ", found.message(),
      ". If the objects themselves are the text: convene data prepare --format text"));
}

}  // namespace convene::worker
