// The classes of characters that the parts of a tokenizer.json ask for, as Rust's standard library
// and the crates that Hugging Face's tokenizers use define them. PURE; thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {

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

// Where the character before byte `at` begins. REQUIRES: 0 < at <= text.size().
inline size_t PreviousCharacter(absl::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

inline bool IsAscii(absl::string_view text) {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

// `\w` of Rust's regex: Alphabetic, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(char32_t code);
// Nd, Nl, No: Rust's char::is_numeric.
bool IsNumeric(char32_t code);
// ASCII punctuation and the categories P*.
bool IsPunctuation(char32_t code);
// The categories M*.
bool IsMark(char32_t code);
// Cc, Cf and Co.
bool IsControl(char32_t code);
// The blocks of ideographs that BERT puts between spaces.
bool IsIdeograph(char32_t code);
// Appends the lower case of `code`: one character, but two for U+0130.
void AppendLowercase(char32_t code, std::string* text);

// `bytes` itself if it is UTF-8; else a view of *repaired, where one U+FFFD stands for each maximal
// subpart that is none.
absl::string_view ValidUtf8(absl::string_view bytes, std::string* repaired);

}  // namespace convene::worker
