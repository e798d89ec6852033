#include "worker_runtime/data/chat/jinja/characters.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"

namespace convene::worker::jinja {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Categories Cc, Cf, Co, Zl, Zp and Zs outside ASCII, surrogates and noncharacters left out.
constexpr Range kNotPrintable[] = {
    {0x80, 0xA0},       {0xAD, 0xAD},       {0x600, 0x605},     {0x61C, 0x61C},
    {0x6DD, 0x6DD},     {0x70F, 0x70F},     {0x890, 0x891},     {0x8E2, 0x8E2},
    {0x1680, 0x1680},   {0x180E, 0x180E},   {0x2000, 0x200F},   {0x2028, 0x202F},
    {0x205F, 0x206F},   {0x3000, 0x3000},   {0xE000, 0xF8FF},   {0xFEFF, 0xFEFF},
    {0xFFF0, 0xFFFB},   {0xFFFE, 0xFFFF},   {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
    {0x13430, 0x13438}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE00FF},
    {0xF0000, 0x10FFFF}};

absl::Status CheckAscii(absl::string_view text) {
  if (IsAscii(text)) return absl::OkStatus();
  return absl::UnimplementedError(
      "upper and lower case of characters outside ASCII, which the chat template asks for");
}

bool Contains(absl::string_view characters, char32_t wanted) {
  for (size_t i = 0; i < characters.size(); i += CharacterLength(characters[i])) {
    if (CharacterAt(characters, i).code == wanted) return true;
  }
  return false;
}

bool IsStripped(char32_t character, const std::optional<absl::string_view>& characters) {
  return characters.has_value() ? Contains(*characters, character) : IsSpace(character);
}

bool EndsLine(char32_t character) {
  return (character >= 0x0A && character <= 0x0D) || (character >= 0x1C && character <= 0x1E) ||
         character == 0x85 || character == 0x2028 || character == 0x2029;
}

}  // namespace

std::vector<size_t> CharacterBegins(absl::string_view text) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < text.size(); i += CharacterLength(text[i])) begins.push_back(i);
  begins.push_back(text.size());
  return begins;
}

bool IsSpace(char32_t character) {
  return IsWhiteSpace(character) || (character >= 0x1C && character <= 0x1F);
}

bool IsPrintable(char32_t character) {
  if (character < 0x80) return character >= 0x20 && character < 0x7F;
  return std::none_of(std::begin(kNotPrintable), std::end(kNotPrintable), [&](const Range& range) {
    return character >= range.first && character <= range.last;
  });
}

absl::string_view StripLeft(absl::string_view text, std::optional<absl::string_view> characters) {
  while (!text.empty() && IsStripped(CharacterAt(text, 0).code, characters)) {
    text.remove_prefix(CharacterLength(text[0]));
  }
  return text;
}

absl::string_view StripRight(absl::string_view text, std::optional<absl::string_view> characters) {
  while (!text.empty()) {
    const size_t last = PreviousCharacter(text, text.size());
    if (!IsStripped(CharacterAt(text, last).code, characters)) break;
    text = text.substr(0, last);
  }
  return text;
}

absl::string_view Strip(absl::string_view text, std::optional<absl::string_view> characters) {
  return StripRight(StripLeft(text, characters), characters);
}

absl::StatusOr<std::string> Upper(absl::string_view text) {
  const absl::Status checked = CheckAscii(text);
  if (!checked.ok()) return checked;
  return absl::AsciiStrToUpper(text);
}

absl::StatusOr<std::string> Lower(absl::string_view text) {
  const absl::Status checked = CheckAscii(text);
  if (!checked.ok()) return checked;
  return absl::AsciiStrToLower(text);
}

absl::StatusOr<std::string> Title(absl::string_view text) {
  const absl::Status checked = CheckAscii(text);
  if (!checked.ok()) return checked;
  std::string titled(text);
  bool in_word = false;
  for (char& c : titled) {
    c = in_word ? absl::ascii_tolower(c) : absl::ascii_toupper(c);
    in_word = absl::ascii_isalpha(c);
  }
  return titled;
}

absl::StatusOr<std::string> Capitalize(absl::string_view text) {
  absl::StatusOr<std::string> lower = Lower(text);
  if (lower.ok() && !lower->empty()) (*lower)[0] = absl::ascii_toupper((*lower)[0]);
  return lower;
}

std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<absl::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const char32_t character = CharacterAt(text, i).code;
    const size_t end = i;
    i += CharacterLength(text[i]);
    if (!EndsLine(character)) continue;
    if (character == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<int64_t> SliceIndices(int64_t size, std::optional<int64_t> start,
                                  std::optional<int64_t> stop, int64_t step) {
  // Python's slice.indices: a negative index counts from the end, and all are cut to the sequence.
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? size : size - 1;
  const auto cut = [&](std::optional<int64_t> index, int64_t missing) {
    if (!index.has_value()) return missing;
    const int64_t from_front = *index < 0 ? *index + size : *index;
    return std::clamp(from_front, lowest, highest);
  };
  const int64_t first = cut(start, step > 0 ? lowest : highest);
  const int64_t last = cut(stop, step > 0 ? highest : lowest);
  std::vector<int64_t> indices;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    indices.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return indices;
}

}  // namespace convene::worker::jinja
