#include "worker_runtime/tokenizer/pattern/pattern_reader.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/pattern/properties.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

PatternItem OneCharacter(char32_t character) { return {.character = character}; }

PatternItem Named(const NamedSet& named, bool is_negated) {
  return {.set = is_negated ? named.set.Complement() : named.set,
          .is_without_case = named.is_without_case};
}

// The characters that stand for themselves behind a letter's backslash.
std::optional<char32_t> ControlOf(char letter) {
  switch (letter) {
    case 't':
      return '\t';
    case 'n':
      return '\n';
    case 'r':
      return '\r';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'a':
      return '\a';
    case 'e':
      return 0x1B;
    default:
      return std::nullopt;
  }
}

}  // namespace

bool PatternReader::Take(absl::string_view text) {
  if (!Is(text)) return false;
  at_ += text.size();
  return true;
}

char32_t PatternReader::TakeCharacter() {
  CONVENE_CHECK(!at_end());
  const char* place = regex_.data() + at_;
  const char32_t character = NextOfValid(&place, regex_.data() + regex_.size());
  at_ = static_cast<size_t>(place - regex_.data());
  return character;
}

absl::StatusOr<PatternItem> PatternReader::TakeEscape(bool in_set) {
  const size_t begin = at_ - 1;
  if (at_end()) return Broken("a backslash at its end", begin);
  const char32_t character = TakeCharacter();
  if (character >= 0x80) return OneCharacter(character);
  const char letter = static_cast<char>(character);
  if (!absl::ascii_isalnum(letter)) {
    if (is_rust() && (letter == '<' || letter == '>')) {
      return Refused(absl::StrCat("the edge of a word (\\", std::string(1, letter), ")"), begin);
    }
    return OneCharacter(character);
  }
  if (const std::optional<char32_t> control = ControlOf(letter)) return OneCharacter(*control);
  const bool is_upper = absl::ascii_isupper(letter);
  switch (letter) {
    case 'x':
    case 'u':
    case 'U': {
      CONVENE_ASSIGN_OR_RETURN(const char32_t number, TakeNumber(begin, letter));
      return OneCharacter(number);
    }
    case 'p':
    case 'P':
      return TakeProperty(begin, is_upper);
    case 's':
    case 'S':
      return Named(*FindProperty("White_Space", rules_), is_upper);
    case 'd':
    case 'D':
      return Named(*FindProperty("Nd", rules_), is_upper);
    case 'h':
    case 'H':
      return Named(*FindPosixSet("xdigit", rules_), is_upper);
    case 'w':
    case 'W':
      return Named({WordSet(rules_, in_set), true}, is_upper);
    default:
      break;
  }
  return Refused(absl::ascii_isdigit(letter)
                     ? absl::StrCat("a reference to a group, or an octal number (\\",
                                    std::string(1, letter), ")")
                     : absl::StrCat("the escape \\", std::string(1, letter)),
                 begin);
}

// Of \x41, \x{41}, A, \U00000041, behind the letter.
absl::StatusOr<char32_t> PatternReader::TakeNumber(size_t begin, char kind) {
  const bool is_in_braces = kind == 'x' && Take("{");
  const size_t digits = is_in_braces ? 8 : kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
  uint32_t value = 0;
  size_t count = 0;
  for (; count < digits && !at_end() && absl::ascii_isxdigit(regex_[at_]); ++count) {
    const char digit = absl::ascii_tolower(regex_[at_++]);
    value = value * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : digit - 'a' + 10);
  }
  const bool is_whole = is_in_braces ? count > 0 && Take("}") : count == digits;
  const bool is_byte = !is_rust() && kind == 'x' && !is_in_braces && value >= 0x80;
  if (!is_whole || is_byte || (kind == 'U' && !is_rust())) {
    return Refused(absl::StrCat("the number of a character or byte in this form (\\",
                                std::string(1, kind), ")"),
                   begin);
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) {
    return Broken("a number that is no character's", begin);
  }
  return value;
}

absl::StatusOr<PatternItem> PatternReader::TakeProperty(size_t begin, bool is_negated) {
  std::string name;
  if (Take("{")) {
    if (Take("^")) is_negated = !is_negated;
    const size_t end = regex_.find('}', at_);
    if (end == absl::string_view::npos) return Broken("\\p{ without its }", begin);
    name = std::string(regex_.substr(at_, end - at_));
    at_ = end + 1;
  } else if (is_rust() && !at_end()) {
    name = std::string(1, regex_[at_]);
    TakeCharacter();
  } else {
    return Refused("\\p without braces", begin);
  }
  const std::optional<NamedSet> found = FindProperty(name, rules_);
  if (!found.has_value()) return Refused(absl::StrCat("the property '", name, "'"), begin);
  return Named(*found, is_negated);
}

absl::Status PatternReader::Refused(absl::string_view what, size_t at) const {
  return absl::UnimplementedError(absl::StrCat(
      "the split pattern has ", what, " at byte ", at, ", which this program does not run as ",
      is_rust() ? "Rust's fancy-regex (tiktoken)" : "Oniguruma (Hugging Face's tokenizers)",
      " does: ", Utf8(regex_, 300),
      ". Write that part of the pattern in other words, with equal matches"));
}

absl::Status PatternReader::Broken(absl::string_view what, size_t at) const {
  return absl::InvalidArgumentError(
      absl::StrCat("the split pattern is no regular expression: it has ", what, " at byte ", at,
                   ": ", Utf8(regex_, 300)));
}

}  // namespace convene::worker
