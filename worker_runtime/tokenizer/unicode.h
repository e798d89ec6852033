// UTF-8 and the kinds of characters that tokenizers ask for (Unicode 15.0, from libutf8proc; the
// kinds of 16, by unicode_changes.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

// U+FFFD, in whose place bytes stand that are no UTF-8.
constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// The questions that the patterns of pre-tokenizers ask about a character.
struct Kind {
  static constexpr uint8_t kLetter = 1;                // \p{L}
  static constexpr uint8_t kNumber = 2;                // \p{N}
  static constexpr uint8_t kSpace = 4;                 // \s: White_Space
  static constexpr uint8_t kMark = 8;                  // \p{M}
  static constexpr uint8_t kPunctuationOrSymbol = 16;  // \p{P}, \p{S}
  static constexpr uint8_t kUpper = 32;                // \p{Lu}, \p{Lt}, \p{Lm}, \p{Lo}, \p{M}
  static constexpr uint8_t kLower = 64;                // \p{Ll}, \p{Lm}, \p{Lo}, \p{M}
  static constexpr uint8_t kNewline = 128;             // \r, \n
};

// The kinds of all characters in one compact table, made at the first use (1 to 2 ms).
class KindTable {
 public:
  static const KindTable& Get();

  // The sum of Kind's bits. REQUIRES: character <= 0x10FFFF.
  uint8_t Of(char32_t character) const {
    return kinds_[block_of_[character >> 8] + (character & 0xFF)];
  }

 private:
  KindTable();

  std::vector<uint32_t> block_of_;  // where the block of 256 characters begins in kinds_
  std::vector<uint8_t> kinds_;      // equal blocks once
};

bool IsWhiteSpace(char32_t character);
// `\w` of Rust's regex: Alphabetic, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(char32_t character);
// `\d` of Oniguruma, and its `\w` outside of brackets (Unicode 16).
bool IsDecimalDigit(char32_t character);
bool IsWordOfOniguruma(char32_t character);
bool IsNonspacingMark(char32_t character);
// Whether `text`, which is UTF-8, has a character of unicode_changes.h.
bool HasChangedCharacter(absl::string_view text);
// Whether upper and lower case differ, or it is a mark or a modifier, which full case folding may
// join with others.
bool MayHaveCase(char32_t character);
// Cc, Cf and Co.
bool IsControl(char32_t character);
// Appends the lower case: one character, but two for U+0130.
void AppendLowercase(char32_t character, std::string* text);

inline bool IsAscii(absl::string_view text) {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

// For text that is UTF-8: the bytes of the character that begins with `lead`.
inline size_t CharacterLength(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// For text that is UTF-8: the value of the character at `at`; adds its length to `at`. Reads no
// further than `end` whatever the bytes are. REQUIRES: at < end.
inline char32_t NextOfValid(const char** at, const char* end) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(*at);
  const char32_t lead = bytes[0];
  const int length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (length == 1 || end - *at < length) {
    ++*at;
    return lead;
  }
  *at += length;
  if (length == 2) return (lead & 0x1F) << 6 | (bytes[1] & 0x3F);
  if (length == 3) return (lead & 0x0F) << 12 | (bytes[1] & 0x3F) << 6 | (bytes[2] & 0x3F);
  const char32_t value =
      (lead & 0x07) << 18 | (bytes[1] & 0x3F) << 12 | (bytes[2] & 0x3F) << 6 | (bytes[3] & 0x3F);
  return value <= 0x10FFFF ? value : 0xFFFD;
}

struct Character {
  char32_t code = 0;
  size_t bytes = 0;
};

// REQUIRES: `text` is UTF-8, and a character begins at byte `at`.
inline Character CharacterAt(absl::string_view text, size_t at) {
  const char* next = text.data() + at;
  const char32_t code = NextOfValid(&next, text.data() + text.size());
  return {code, static_cast<size_t>(next - text.data()) - at};
}

// REQUIRES: `text` is UTF-8.
inline bool IsOneCharacter(absl::string_view text) {
  return !text.empty() && CharacterAt(text, 0).bytes == text.size();
}

// REQUIRES: `text` is UTF-8.
inline int64_t CountCharacters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

// Where the character before byte `at` begins. REQUIRES: 0 < at <= text.size().
inline size_t PreviousCharacter(absl::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

// The white space of a UTF-8 text that ends at byte `end` begins here, or at `bound`, if it reaches
// back so far; the one that begins at byte `begin` ends there.
size_t SpaceBegin(absl::string_view text, size_t bound, size_t end);
size_t SpaceEnd(absl::string_view text, size_t begin);

// How many bytes at the beginning of `text` are whole, valid characters.
size_t ValidUtf8Prefix(absl::string_view text);

inline bool IsUtf8(absl::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

// How many U+FFFD stand for bytes that are no UTF-8.
enum class Replacement {
  kMaximalSubpart,  // Rust, Python
  kEachByte,        // SentencePiece
};

// Appends `text` with U+FFFD in place of what is no UTF-8.
void AppendAsUtf8(absl::string_view text, Replacement replacement, std::string* result);

// `bytes` itself if it is UTF-8; else a view of *repaired, where one U+FFFD stands for each maximal
// subpart that is none.
absl::string_view ValidUtf8(absl::string_view bytes, std::string* repaired);

// Appends one character. REQUIRES: a code point that is no surrogate.
void AppendCharacter(char32_t character, std::string* result);

}  // namespace convene::worker
