#include "worker_runtime/tokenizer/scanners.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_replace.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {

const absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const absl::string_view kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+)"
    R"(| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
const absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const absl::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const absl::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const absl::string_view kCohereDigitsPattern = R"(\d{1,3}(?=(?:\d{3})*\b))";

namespace {

constexpr size_t kNoMatch = static_cast<size_t>(-1);

// A character's kinds and where it ends.
struct Seen {
  uint8_t kinds = 0;  // 0 at the text's end
  size_t end = 0;
};

// A text, as the scanners look at it.
class Text {
 public:
  Text(absl::string_view text, const KindTable& table)
      : begin_(text.data()), size_(text.size()), table_(table) {}

  size_t size() const { return size_; }

  // Past the end: kinds 0, and the end is `at`.
  Seen At(size_t at) const {
    if (at >= size_) return {0, at};
    const auto byte = static_cast<unsigned char>(begin_[at]);
    if (byte < 0x80) return {table_.Of(byte), at + 1};
    const char* place = begin_ + at;
    const uint8_t kinds = table_.Of(NextOfValid(&place, begin_ + size_));
    return {kinds, static_cast<size_t>(place - begin_)};
  }
  // NUL past the end.
  char Byte(size_t at) const { return at < size_ ? begin_[at] : '\0'; }
  char32_t Character(size_t at) const {
    const char* place = begin_ + at;
    return NextOfValid(&place, begin_ + size_);
  }

  // The end of the run of characters, from `at` on, of which each has one of the kinds.
  size_t EndOfRun(size_t at, uint8_t wanted) const {
    for (;;) {
      const Seen seen = At(at);
      if ((seen.kinds & wanted) == 0) return at;
      at = seen.end;
    }
  }
  // Of those of which none has one of the kinds. `at` may be the text's end.
  size_t EndOfRunWithout(size_t at, uint8_t unwanted) const {
    while (at < size_) {
      const Seen seen = At(at);
      if ((seen.kinds & unwanted) != 0) return at;
      at = seen.end;
    }
    return at;
  }

 private:
  const char* begin_;
  size_t size_;
  const KindTable& table_;
};

constexpr uint8_t kLetterOrNumber = Kind::kLetter | Kind::kNumber;
constexpr uint8_t kSpaceLetterOrNumber = Kind::kSpace | kLetterOrNumber;

// The end of 's|'t|'re|'ve|'m|'ll|'d at an apostrophe, else kNoMatch. Without case also U+017F,
// whose capital is S.
size_t EndOfContraction(const Text& text, size_t at, bool ignore_case) {
  const auto folded = [&](size_t place) {
    const char byte = text.Byte(place);
    return ignore_case && byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte + 32) : byte;
  };
  switch (folded(at + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return at + 2;
    case 'r':
    case 'v':
      return folded(at + 2) == 'e' ? at + 3 : kNoMatch;
    case 'l':
      return folded(at + 2) == 'l' ? at + 3 : kNoMatch;
    case '\xC5':
      return ignore_case && text.Byte(at + 2) == '\xBF' ? at + 3 : kNoMatch;
    default:
      return kNoMatch;
  }
}

// \s*[\r\n]+ (when `lines`), \s+(?!\S), \s+ at a space: the run of spaces up to its last newline;
// else all of it at the text's end, else all but its last character, which goes with the next word.
// `whole_at_end` is \s++$ before them.
size_t EndOfSpaces(const Text& text, size_t at, bool lines, bool whole_at_end) {
  size_t end = at, last = at, after_newline = at;
  for (;;) {
    const Seen seen = text.At(end);
    if ((seen.kinds & Kind::kSpace) == 0) break;
    last = end;
    end = seen.end;
    if ((seen.kinds & Kind::kNewline) != 0) after_newline = end;
  }
  if (whole_at_end && end == text.size()) return end;
  if (lines && after_newline > at) return after_newline;
  return end == text.size() || last == at ? end : last;
}

// GPT-2: ' ?' before runs of letters, of numbers, of others.
struct Gpt2 {
  static size_t Match(const Text& text, size_t at) {
    if (text.Byte(at) == '\'') {
      const size_t end = EndOfContraction(text, at, /*ignore_case=*/false);
      if (end != kNoMatch) return end;
    }
    const size_t begin = text.Byte(at) == ' ' ? at + 1 : at;
    const Seen first = text.At(begin);
    if ((first.kinds & Kind::kLetter) != 0) return text.EndOfRun(first.end, Kind::kLetter);
    if ((first.kinds & Kind::kNumber) != 0) return text.EndOfRun(first.end, Kind::kNumber);
    if (begin < text.size() && (first.kinds & Kind::kSpace) == 0) {
      return text.EndOfRunWithout(first.end, kSpaceLetterOrNumber);
    }
    return EndOfSpaces(text, at, /*lines=*/false, /*whole_at_end=*/false);
  }
};

// \p{N}{1,most} at a number.
size_t EndOfNumber(const Text& text, size_t at, int most) {
  size_t end = text.At(at).end;
  for (int i = 1; i < most; ++i) {
    const Seen seen = text.At(end);
    if ((seen.kinds & Kind::kNumber) == 0) break;
    end = seen.end;
  }
  return end;
}

// ' ?[^\s\p{L}\p{N}]+[\r\n]*', and [\r\n/]* with `slashes`; kNoMatch when none begins here.
size_t EndOfOthers(const Text& text, size_t at, bool slashes) {
  const size_t begin = text.Byte(at) == ' ' ? at + 1 : at;
  size_t end = text.EndOfRunWithout(begin, kSpaceLetterOrNumber);
  if (end == begin) return kNoMatch;
  for (;; ++end) {
    const char byte = text.Byte(end);
    if (byte != '\r' && byte != '\n' && !(slashes && byte == '/')) return end;
  }
}

// [^\r\n\p{L}\p{N}] before a word.
bool MayStandBeforeWord(const Seen& seen) {
  return (seen.kinds & (kLetterOrNumber | Kind::kNewline)) == 0;
}

// Llama 3, cl100k, Qwen: words with one character before them, numbers of a few digits.
template <int kDigits, bool kWholeAtEnd>
struct Llama3 {
  static size_t Match(const Text& text, size_t at) {
    const Seen first = text.At(at);
    if ((first.kinds & Kind::kLetter) != 0) return text.EndOfRun(first.end, Kind::kLetter);
    if ((first.kinds & Kind::kNumber) != 0) return EndOfNumber(text, at, kDigits);
    if (text.Byte(at) == '\'') {
      const size_t end = EndOfContraction(text, at, /*ignore_case=*/true);
      if (end != kNoMatch) return end;
    }
    if (MayStandBeforeWord(first)) {
      const size_t end = text.EndOfRun(first.end, Kind::kLetter);
      if (end > first.end) return end;
    }
    const size_t end = EndOfOthers(text, at, /*slashes=*/false);
    if (end != kNoMatch) return end;
    return EndOfSpaces(text, at, /*lines=*/true, kWholeAtEnd);
  }
};

// The end of [upper]*[lower]+ from `at` on, else kNoMatch. Other letters and marks are both upper
// and lower.
size_t EndOfUpperLower(const Text& text, size_t at) {
  size_t end = at, after_both = kNoMatch;
  for (;;) {
    const Seen seen = text.At(end);
    if ((seen.kinds & Kind::kUpper) == 0) break;
    end = seen.end;
    if ((seen.kinds & Kind::kLower) != 0) after_both = end;
  }
  const size_t end_of_lower = text.EndOfRun(end, Kind::kLower);
  // Without a lower letter behind, [upper]* gives back down to the last character that is both.
  return end_of_lower > end ? end_of_lower : after_both;
}

// o200k, tekken: a word changes where small letters turn into capitals.
template <int kDigits, bool kContractions>
struct O200k {
  static size_t Match(const Text& text, size_t at) {
    const Seen first = text.At(at);
    if ((first.kinds & Kind::kNumber) != 0) return EndOfNumber(text, at, kDigits);
    const size_t end_of_word = EndOfWord(text, at, first);
    if (end_of_word != kNoMatch) {
      if (!kContractions || text.Byte(end_of_word) != '\'') return end_of_word;
      const size_t end = EndOfContraction(text, end_of_word, /*ignore_case=*/true);
      return end == kNoMatch ? end_of_word : end;
    }
    const size_t end = EndOfOthers(text, at, /*slashes=*/true);
    if (end != kNoMatch) return end;
    return EndOfSpaces(text, at, /*lines=*/true, /*whole_at_end=*/false);
  }

 private:
  static size_t EndOfWord(const Text& text, size_t at, const Seen& first) {
    // [upper]*[lower]+ with and without a character before it, then [upper]+[lower]*, which has no
    // lower ones to find any more.
    const bool may_precede = MayStandBeforeWord(first);
    size_t end = may_precede ? EndOfUpperLower(text, first.end) : kNoMatch;
    if (end == kNoMatch) end = EndOfUpperLower(text, at);
    if (end != kNoMatch) return end;
    const size_t begin = may_precede ? first.end : at;
    end = text.EndOfRun(begin, Kind::kUpper);
    return end > begin ? end : kNoMatch;
  }
};

// DeepSeek's three steps, each a pattern of its own.
struct DeepSeekNumbers {
  static size_t Match(const Text& text, size_t at) {
    return (text.At(at).kinds & Kind::kNumber) == 0 ? kNoMatch : EndOfNumber(text, at, 3);
  }
};

struct DeepSeekCjk {
  static size_t Match(const Text& text, size_t at) {
    size_t end = at;
    while (end < text.size() && IsCjk(text, end)) end = text.At(end).end;
    return end == at ? kNoMatch : end;
  }

 private:
  static bool IsCjk(const Text& text, size_t at) {
    if (static_cast<unsigned char>(text.Byte(at)) < 0xE3) return false;
    const char32_t character = text.Character(at);
    return (character >= 0x4E00 && character <= 0x9FA5) ||
           (character >= 0x3040 && character <= 0x30FF);
  }
};

struct DeepSeekWords {
  static size_t Match(const Text& text, size_t at) {
    constexpr uint8_t kWord = Kind::kLetter | Kind::kMark;
    const Seen first = text.At(at);
    if (IsAsciiPunctuation(text.Byte(at)) && IsAsciiLetter(text.Byte(at + 1))) {
      size_t end = at + 2;
      while (IsAsciiLetter(text.Byte(end))) ++end;
      return end;
    }
    constexpr uint8_t kNotBeforeWord = Kind::kLetter | Kind::kPunctuationOrSymbol | Kind::kNewline;
    const bool may_precede = (first.kinds & kNotBeforeWord) == 0;
    const size_t begin = may_precede ? first.end : at;
    size_t end = text.EndOfRun(begin, kWord);
    if (end > begin) return end;
    if ((first.kinds & Kind::kMark) != 0) return first.end;
    const size_t other = text.Byte(at) == ' ' ? at + 1 : at;
    end = text.EndOfRun(other, Kind::kPunctuationOrSymbol);
    if (end > other) {
      while (text.Byte(end) == '\r' || text.Byte(end) == '\n') ++end;
      return end;
    }
    if ((first.kinds & Kind::kSpace) == 0) return kNoMatch;
    return EndOfSpaces(text, at, /*lines=*/true, /*whole_at_end=*/false);
  }

 private:
  static bool IsAsciiLetter(char byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
  }
  static bool IsAsciiPunctuation(char byte) {
    return byte > ' ' && byte < 0x7F && !IsAsciiLetter(byte) && !(byte >= '0' && byte <= '9');
  }
};

template <typename Rules>
class Scanner : public SplitPattern {
 public:
  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    const Text seen(text, table_);
    size_t at = begin;
    while (at < text.size() && limit > 0) {
      const size_t end = Rules::Match(seen, at);
      if (end == kNoMatch) {
        at = seen.At(at).end;
        continue;
      }
      matches->push_back({at, end});
      at = end;
      --limit;
    }
    return at;
  }

 private:
  const KindTable& table_ = KindTable::Get();
};

// Cohere's digits, in groups of three that are counted from the end of their run. A run has no
// group where a character of a word stands behind it: only between the two is no \b. PCRE2 looks
// from each group to the end of the run, which takes squared time.
class DigitGroups : public SplitPattern {
 public:
  size_t FindSome(absl::string_view text, size_t begin, size_t limit,
                  std::vector<TextRange>* matches) const override {
    // The call before stopped within a run: whole groups are left of it.
    bool is_within = begin > 0 && IsDigit(CharacterAt(text, PreviousCharacter(text, begin)).code);
    size_t at = begin;
    while (at < text.size() && limit > 0) {
      const Character first = CharacterAt(text, at);
      if (!IsDigit(first.code)) {
        is_within = false;
        at += first.bytes;
        continue;
      }
      size_t digits = 3;
      if (!is_within) {
        size_t end = at;
        const size_t run = CountDigits(text, &end, text.size());
        if (end < text.size() && IsWordOfOniguruma(CharacterAt(text, end).code)) {
          at = end;
          continue;
        }
        digits = (run - 1) % 3 + 1;
      }
      size_t end = at;
      CountDigits(text, &end, digits);
      matches->push_back({at, end});
      at = end;
      is_within = true;
      --limit;
    }
    return at;
  }

 private:
  static bool IsDigit(char32_t character) {
    if (character < 0x80) return character >= '0' && character <= '9';
    return (KindTable::Get().Of(character) & Kind::kNumber) != 0 && IsDecimalDigit(character);
  }
  // Moves *at behind the digits there, `most` at most.
  static size_t CountDigits(absl::string_view text, size_t* at, size_t most) {
    size_t count = 0;
    for (; count < most && *at < text.size(); ++count) {
      const Character character = CharacterAt(text, *at);
      if (!IsDigit(character.code)) break;
      *at += character.bytes;
    }
    return count;
  }
};

std::unique_ptr<SplitPattern> MakeDigitGroups() { return std::make_unique<DigitGroups>(); }

template <typename Rules>
std::unique_ptr<SplitPattern> Make() {
  return std::make_unique<Scanner<Rules>>();
}

struct Known {
  absl::string_view regex;
  std::unique_ptr<SplitPattern> (*make)();
};

const std::vector<Known>& Table() {
  static const auto* const table = new std::vector<Known>{
      {kGpt2Pattern, Make<Gpt2>},
      // tiktoken's older and present forms of it: the same language.
      {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", Make<Gpt2>},
      {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
       Make<Gpt2>},
      {kCl100kPattern, Make<Llama3<3, /*kWholeAtEnd=*/true>>},
      {kLlama3Pattern, Make<Llama3<3, /*kWholeAtEnd=*/false>>},
      {kQwen2Pattern, Make<Llama3<1, /*kWholeAtEnd=*/false>>},
      {kO200kPattern, Make<O200k<3, /*kContractions=*/true>>},
      {kTekkenPattern, Make<O200k<1, /*kContractions=*/false>>},
      {R"(\p{N}{1,3})", Make<DeepSeekNumbers>},
      {"[一-龥぀-ゟ゠-ヿ]+", Make<DeepSeekCjk>},
      {kCohereDigitsPattern, MakeDigitGroups},
      {R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
       R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Make<DeepSeekWords>},
  };
  return *table;
}

}  // namespace

std::vector<absl::string_view> KnownPatterns() {
  std::vector<absl::string_view> patterns;
  for (const Known& known : Table()) patterns.push_back(known.regex);
  return patterns;
}

std::unique_ptr<SplitPattern> MakeScanner(absl::string_view regex, PatternDialect dialect) {
  const bool is_rust = dialect == PatternDialect::kRust;
  if (regex == (is_rust ? kCohereDigitsPattern : kCl100kPattern)) return nullptr;
  // DeepSeek's files have the characters themselves in the place of \r and \n.
  const std::string escaped = absl::StrReplaceAll(regex, {{"\r", "\\r"}, {"\n", "\\n"}});
  for (const Known& known : Table()) {
    if (known.regex == escaped) return known.make();
  }
  return nullptr;
}

}  // namespace convene::worker
