#include "worker_runtime/data/prepare/json_field.h"

#include <emmintrin.h>  // every x86-64 has SSE2
#include <rapidjson/error/en.h>
#include <rapidjson/reader.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

constexpr int kWideBytes = sizeof(__m128i);

__m128i LoadWide(const char* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

// A line that is unescaped in place (RapidJSON's concept of a stream). RapidJSON's own such stream
// goes byte by byte to the next aligned address behind each escape, which takes half of all time in
// texts with many line ends. Here the character that is put takes all plain ones behind it along.
// REQUIRES: a zero ends the line, with kWideBytes of room from there on.
class LineStream {
 public:
  using Ch = char;
  explicit LineStream(char* line) : line_(line), source_(line), target_(line) {}

  char Peek() const { return *source_; }
  char Take() { return *source_++; }
  size_t Tell() const { return source_ - line_; }
  char* PutBegin() { return target_ = source_; }
  void Put(char c) {
    *target_++ = c;
    if (c != '\0') PutPlain();  // a zero ends the text
  }
  size_t PutEnd(const char* begin) const { return target_ - begin; }

 private:
  // Up to the next quote, backslash or control character.
  void PutPlain() {
    const __m128i last_control = _mm_set1_epi8(0x1F);
    char* source = source_;
    char* target = target_;
    int count = kWideBytes;
    while (count == kWideBytes) {
      const __m128i bytes = LoadWide(source);
      const __m128i ends =
          _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')),
                                    _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'))),
                       _mm_cmpeq_epi8(_mm_max_epu8(bytes, last_control), last_control));
      // The bit behind the last byte's ends the count.
      count = std::countr_zero(static_cast<uint32_t>(_mm_movemask_epi8(ends)) | 1U << kWideBytes);
      if (source - target >= kWideBytes) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(target), bytes);
      } else if (source != target) {
        std::memmove(target, source, count);
      }
      source += count;
      target += count;
    }
    source_ = source;
    target_ = target;
  }

  const char* const line_;
  char* source_;
  char* target_;
};

// Follows the keys from the root through objects.
class FieldHandler : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, FieldHandler> {
 public:
  explicit FieldHandler(const std::vector<std::string>& keys) : keys_(keys) {}

  // Any number, true, false or null.
  bool Default() {
    TakeOther();
    return true;
  }
  bool String(const char* text, rapidjson::SizeType size, bool) {
    if (is_wanted_ && IsLastKey()) {
      found_ = true;
      is_text_ = true;
      text_ = absl::string_view(text, size);
    }
    is_wanted_ = false;
    return true;
  }
  bool Key(const char* text, rapidjson::SizeType size, bool) {
    is_wanted_ = depth_ == matched_ + 1 && absl::string_view(text, size) == keys_[matched_];
    return true;
  }
  bool StartObject() {
    if (depth_ == 0) is_object_ = true;
    if (is_wanted_ && !IsLastKey()) {
      ++matched_;
      is_wanted_ = false;
    } else {
      TakeOther();
    }
    return ++depth_ <= kMostJsonDepth;
  }
  bool EndObject(rapidjson::SizeType) {
    --depth_;
    if (depth_ == matched_ && matched_ > 0) --matched_;
    return true;
  }
  bool StartArray() {
    TakeOther();
    return ++depth_ <= kMostJsonDepth;
  }
  bool EndArray(rapidjson::SizeType) {
    --depth_;
    return true;
  }

  bool is_object() const { return is_object_; }
  bool found() const { return found_; }
  bool is_text() const { return is_text_; }
  absl::string_view text() const { return text_; }

 private:
  bool IsLastKey() const { return matched_ + 1 == static_cast<int>(keys_.size()); }
  // A value that is no text.
  void TakeOther() {
    if (is_wanted_ && IsLastKey()) {
      found_ = true;
      is_text_ = false;
    }
    is_wanted_ = false;
  }

  const std::vector<std::string>& keys_;
  int depth_ = 0;           // objects and arrays around
  int matched_ = 0;         // of these, the outermost that keys_ leads into, the root not counted
  bool is_wanted_ = false;  // the next value stands at keys_[matched_]
  bool is_object_ = false;
  bool found_ = false;
  bool is_text_ = false;
  absl::string_view text_;
};

absl::Status Broken(absl::string_view why, size_t byte) {
  return absl::InvalidArgumentError(absl::StrCat("broken JSON at byte ", byte + 1, ": ", why));
}

// The length of the character that begins `text`, 0 where none does. REQUIRES: text is not empty.
size_t CharacterLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  if (first < 0xE0) return text.size() >= 2 && continues(1) ? 2 : 0;
  const size_t length = first < 0xF0 ? 3 : 4;
  if (text.size() < length) return 0;
  // Neither longer than need be, nor a surrogate, nor above U+10FFFF.
  const uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most || !continues(2)) return 0;
  return length == 3 || continues(3) ? length : 0;
}

}  // namespace

bool IsUtf8(absl::string_view text, size_t* bad_byte) {
  size_t i = 0;
  while (i < text.size()) {
    if (i + kWideBytes <= text.size() && _mm_movemask_epi8(LoadWide(text.data() + i)) == 0) {
      i += kWideBytes;
      continue;
    }
    const size_t length = CharacterLength(text.substr(i));
    if (length == 0) {
      *bad_byte = i;
      return false;
    }
    i += length;
  }
  return true;
}

JsonField::JsonField(const std::string& path) : path_(path), keys_(absl::StrSplit(path, '.')) {
  for (const std::string& key : keys_) CONVENE_CHECK(!key.empty());
}

absl::StatusOr<absl::string_view> JsonField::Find(absl::string_view line) {
  size_t bad_byte = 0;
  if (!IsUtf8(line, &bad_byte)) return Broken("not UTF-8", bad_byte);
  // To the reader a zero ends the line.
  if (const size_t zero = line.find('\0'); zero != absl::string_view::npos) {
    return Broken("a zero byte", zero);
  }
  buffer_.clear();
  buffer_.reserve(line.size() + kWideBytes);
  buffer_.assign(line.data(), line.size());
  FieldHandler handler(keys_);
  rapidjson::Reader reader;
  LineStream stream(buffer_.data());
  const rapidjson::ParseResult result =
      reader.Parse<rapidjson::kParseInsituFlag | rapidjson::kParseIterativeFlag>(stream, handler);
  if (result.Code() == rapidjson::kParseErrorTermination) {
    return Broken(absl::StrCat("nested deeper than ", kMostJsonDepth), result.Offset());
  }
  if (result.IsError()) {
    return Broken(result.Offset() >= line.size() ? "the line ends too early"
                                                 : rapidjson::GetParseError_En(result.Code()),
                  result.Offset());
  }
  if (!handler.is_object()) return absl::InvalidArgumentError("not a JSON object");
  if (!handler.found()) return absl::InvalidArgumentError(absl::StrCat("no field '", path_, "'"));
  if (!handler.is_text()) {
    return absl::InvalidArgumentError(absl::StrCat("the field '", path_, "' is not a text"));
  }
  return handler.text();
}

}  // namespace convene::worker
