#include "worker_runtime/tokenizer/scanners.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pcre_pattern.h"
#include "worker_runtime/tokenizer/split_pattern.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

std::vector<TextRange> Ranges(const SplitPattern& pattern, absl::string_view text) {
  std::vector<TextRange> buffer, ranges;
  pattern.ForEach(text, &buffer, [&](const TextRange& range) { ranges.push_back(range); });
  return ranges;
}

std::unique_ptr<SplitPattern> Pcre(absl::string_view regex) {
  auto pattern = MakePcrePattern(std::string(regex), PatternDialect::kRust);
  REQUIRE(pattern.ok());
  return *std::move(pattern);
}

std::vector<std::string> Pieces(absl::string_view regex, const std::string& text,
                                PatternDialect dialect = PatternDialect::kRust) {
  const std::unique_ptr<SplitPattern> scanner = MakeScanner(regex, dialect);
  REQUIRE(scanner != nullptr);
  std::vector<std::string> pieces;
  for (const TextRange& range : Ranges(*scanner, text)) {
    pieces.push_back(text.substr(range.begin, range.end - range.begin));
  }
  return pieces;
}

using Texts = std::vector<std::string>;

// Whether each character is matched by a set, according to PCRE2.
std::vector<bool> MatchedBy(absl::string_view set) {
  const std::unique_ptr<SplitPattern> pattern = Pcre(set);
  std::vector<bool> matched(0x110000);
  std::string text;
  std::vector<char32_t> character_at;
  for (char32_t character = 0; character < 0x110000; ++character) {
    if (character >= 0xD800 && character < 0xE000) continue;
    AppendCharacter(character, &text);
    character_at.resize(text.size(), character);
  }
  for (const TextRange& range : Ranges(*pattern, text)) matched[character_at[range.begin]] = true;
  return matched;
}

TEST_CASE("the table of kinds agrees with the sets of patterns") {
  const struct {
    uint8_t kind;
    absl::string_view set;
  } kinds[] = {
      {Kind::kLetter, R"(\p{L})"},
      {Kind::kNumber, R"(\p{N})"},
      {Kind::kSpace, R"(\p{White_Space})"},
      {Kind::kMark, R"(\p{M})"},
      {Kind::kPunctuationOrSymbol, R"([\p{P}\p{S}])"},
      {Kind::kUpper, R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"},
      {Kind::kLower, R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"},
      {Kind::kNewline, R"([\r\n])"},
  };
  for (const auto& kind : kinds) {
    const std::vector<bool> expected = MatchedBy(kind.set);
    size_t different = 0;
    for (char32_t character = 0; character < 0x110000; ++character) {
      different += ((KindTable::Get().Of(character) & kind.kind) != 0) != expected[character];
    }
    INFO(std::string(kind.set));
    CHECK(different == 0);
  }
}

// clang-format off
const char* const kParts[] = {
    "a", "b", "S", "Z", "'s", "'LL", "'\u017f", "'", "re", "1", "23", "\u00b2", "\u0663", "\u2167",
    " ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", "\u0085", "\u00a0", "\u3000", "\u200b", "\u180e",
    ".", ",", "/", "//", "-", "_", "$", "\u20ac", "!", "\\", "[", "\u00e9", "\u00c9", "\u01c5",
    "e\u0301", "\u0301", "\u0939\u093f\u0928\u094d", "\u4e2d", "\u6587", "\u30ab", "\u3042", "\u30fb",
    "\u00aa", "\u02b0", "\u0416", "\u0436", "\u05d0", "\u0627", "\U0001f999", "\u200d", "\ufe0f",
    "\U00050000", "\ue000", "\x01", "\x7f", "Aa", "aA", "\u9fa6", "\u309f", "\u3100",
};
// clang-format on

std::vector<std::string> RandomTexts(int count) {
  std::mt19937 random(11);
  const std::vector<bool> unassigned = MatchedBy(R"(\p{Cn})");
  const auto any_character = [&] {
    for (;;) {
      const auto character = static_cast<char32_t>(random() % 0x30000);
      if (character >= 0xD800 && character < 0xE000) continue;
      if (!unassigned[character]) return character;
    }
  };
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    std::string text;
    const size_t size = random() % 24;
    for (size_t part = 0; part < size; ++part) {
      if (random() % 12 == 0) {
        AppendCharacter(any_character(), &text);
      } else {
        // Often one of a few, so that runs and repetitions come about.
        text += kParts[random() % 3 == 0 ? random() % 12 : random() % std::size(kParts)];
      }
    }
    texts.push_back(text);
  }
  return texts;
}

TEST_CASE("every known pattern finds what PCRE2 finds, on random texts") {
  const std::vector<std::string> texts = RandomTexts(3'000);
  for (const absl::string_view regex : KnownPatterns()) {
    INFO(std::string(regex));
    const std::unique_ptr<SplitPattern> scanner = MakeScanner(regex, PatternDialect::kRust);
    CHECK((scanner == nullptr) == (regex == kCohereDigitsPattern));
    if (scanner == nullptr) continue;
    const std::unique_ptr<SplitPattern> pcre = Pcre(regex);
    for (const std::string& text : texts) {
      const std::vector<TextRange> found = Ranges(*scanner, text);
      if (found == Ranges(*pcre, text)) continue;
      INFO(text);
      CHECK(found == Ranges(*pcre, text));
    }
  }
}

TEST_CASE("every scanner that Oniguruma's patterns have finds what the pattern means there") {
  const std::vector<std::string> texts = RandomTexts(1'000);
  for (const absl::string_view regex : KnownPatterns()) {
    INFO(std::string(regex));
    const auto scanner = MakeScanner(regex, PatternDialect::kOniguruma);
    CHECK((scanner == nullptr) == (regex == kCl100kPattern));
    const auto pcre = MakePcrePattern(std::string(regex), PatternDialect::kOniguruma);
    REQUIRE(pcre.ok());
    for (const std::string& text : texts) {
      if (scanner != nullptr) CHECK(Ranges(*scanner, text) == Ranges(**pcre, text));
    }
  }
}

TEST_CASE("the traps of each pattern") {
  CHECK(Pieces(kGpt2Pattern, "I'll I'LL a  b   ") ==
        Texts{"I", "'ll", " I", "'", "LL", " a", " ", " b", "   "});
  CHECK(Pieces(kLlama3Pattern, "I'LL 1234 x\n\n y  ") ==
        Texts{"I", "'LL", " ", "123", "4", " x", "\n\n", " y", "  "});
  CHECK(Pieces(kLlama3Pattern, "'\u017fx") == Texts{"'\u017f", "x"});
  CHECK(Pieces(kLlama3Pattern, "a \n \n  b") == Texts{"a", " \n \n", " ", " b"});
  CHECK(Pieces(kLlama3Pattern, "a \n  ") == Texts{"a", " \n", "  "});
  CHECK(Pieces(kCl100kPattern, "a \n  ") == Texts{"a", " \n  "});
  CHECK(Pieces(kQwen2Pattern, "12") == Texts{"1", "2"});
  CHECK(Pieces(kO200kPattern, "HelloWorld's FOO \u4e2dA ///\n/x") ==
        Texts{"Hello", "World's", " FOO", " \u4e2d", "A", " ///\n/", "x"});
  CHECK(Pieces(kTekkenPattern, "it's 12") == Texts{"it", "'s", " ", "1", "2"});
}

TEST_CASE("Cohere's digits: groups of three from the right, where no word goes on") {
  const auto pieces = [](const std::string& text) {
    return Pieces(kCohereDigitsPattern, text, PatternDialect::kOniguruma);
  };
  // As tokenizers 0.23.3 has them.
  CHECK(pieces("1234567") == Texts{"1", "234", "567"});
  CHECK(pieces("12-1234ab 5678") == Texts{"12", "5", "678"});
  CHECK(pieces("1\u00b2 12_ 12\u00e9 12\u0301 12\u2167") == Texts{});
  CHECK(pieces("a123456, \u00b21\u200d") == Texts{"123", "456", "1"});
  CHECK(pieces("\u0663\u0664\u0665\u0666") == Texts{"\u0663", "\u0664\u0665\u0666"});

  // Each character behind a digit is of a word or not, and a digit or not, as the pattern has it.
  // No letter or number is in the planes behind.
  const auto scanner = MakeScanner(kCohereDigitsPattern, PatternDialect::kOniguruma);
  const auto pcre = MakePcrePattern(std::string(kCohereDigitsPattern), PatternDialect::kOniguruma);
  REQUIRE(pcre.ok());
  std::string text;
  for (char32_t character = 0; character < 0x40000; ++character) {
    if (character >= 0xD800 && character < 0xE000) continue;
    text += '7';
    AppendCharacter(character, &text);
    text += ' ';
  }
  const bool is_equal = Ranges(*scanner, text) == Ranges(**pcre, text);
  CHECK(is_equal);

  // Three million would take hours in squared time. Where the scanner stops within a run does not
  // matter.
  const std::string digits(3'000'001, '8');
  const std::vector<TextRange> ranges = Ranges(*scanner, digits + "." + digits);
  CHECK(ranges.size() == 2 * (digits.size() / 3 + 1));
  CHECK(ranges.front().end == 1);
  CHECK(Ranges(*scanner, digits + "x").empty());
}

TEST_CASE("a scanner goes on where it stopped, and stays within bytes that are no UTF-8") {
  std::mt19937 random(5);
  for (const absl::string_view regex : KnownPatterns()) {
    // A pattern that has no scanner in Rust's words has one in Oniguruma's.
    std::unique_ptr<SplitPattern> scanner = MakeScanner(regex, PatternDialect::kRust);
    if (scanner == nullptr) scanner = MakeScanner(regex, PatternDialect::kOniguruma);
    REQUIRE(scanner != nullptr);
    for (int round = 0; round < 300; ++round) {
      std::string text(random() % 40, ' ');
      for (char& byte : text)
        byte = static_cast<char>(random() % 3 == 0 ? random() % 128 : random());
      const std::vector<TextRange> whole = Ranges(*scanner, text);
      std::vector<TextRange> parts;
      for (size_t at = 0; at < text.size();) at = scanner->FindSome(text, at, 1, &parts);
      REQUIRE(whole == parts);
      size_t at = 0;
      for (const TextRange& range : whole) {
        REQUIRE(range.begin >= at);
        REQUIRE(range.end > range.begin);
        at = range.end;
      }
      REQUIRE(at <= text.size());
    }
  }
  CHECK(MakeScanner("\\w+", PatternDialect::kRust) == nullptr);
  for (const PatternDialect dialect : {PatternDialect::kRust, PatternDialect::kOniguruma}) {
    CHECK(MakeScanner(absl::StrReplaceAll(kLlama3Pattern, {{"\\r", "\r"}, {"\\n", "\n"}}),
                      dialect) != nullptr);
  }
}

}  // namespace
}  // namespace convene::worker
