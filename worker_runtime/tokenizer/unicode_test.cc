#include "worker_runtime/tokenizer/unicode.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

std::string Replaced(absl::string_view text, Replacement replacement) {
  std::string result;
  AppendAsUtf8(text, replacement, &result);
  return result;
}

// A replacement shows as '?'.
std::string Shown(absl::string_view text, Replacement replacement) {
  std::string result = Replaced(text, replacement);
  for (size_t at = 0; (at = result.find("\xEF\xBF\xBD", at)) != std::string::npos; ++at) {
    result.replace(at, 3, "?");
  }
  return result;
}

TEST_CASE("bytes that are no UTF-8 become as many U+FFFD as Python and Rust make of them") {
  const auto shown = [](absl::string_view text) {
    return Shown(text, Replacement::kMaximalSubpart);
  };
  // The examples of Unicode 15, tables 3-8 to 3-11.
  CHECK(shown("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") == "????????A");
  CHECK(shown("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") == "????????A");
  CHECK(shown("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") == "?????A??B");
  CHECK(shown("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == "????A");
  CHECK(shown("a\xE2\x82") == "a?");
  CHECK(shown("\xF0\x9F\xA6") == "?");
  CHECK(Shown("a\xF0\x9F\xA6", Replacement::kEachByte) == "a???");
  CHECK(Shown("\xE2\x82z", Replacement::kEachByte) == "??z");
}

TEST_CASE("characters of all lengths are read and written alike") {
  for (const char32_t character : {0x0u, 0x41u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u,
                                   0xFFFFu, 0x10000u, 0x1F999u, 0x10FFFFu}) {
    std::string text;
    AppendCharacter(character, &text);
    const Utf8Character read = FirstCharacter(text);
    CHECK(read.is_valid);
    CHECK(read.length == text.size());
    CHECK(IsUtf8(text));
    const char* at = text.data();
    CHECK(NextOfValid(&at, text.data() + text.size()) == character);
    CHECK(at == text.data() + text.size());
    for (size_t cut = 1; cut < text.size(); ++cut) {
      CHECK(ValidUtf8Prefix("xy" + text.substr(0, cut)) == 2);
    }
  }
}

TEST_CASE("any bytes come out as UTF-8, and valid ones unchanged") {
  std::mt19937 random(3);
  const unsigned char alphabet[] = {'a',  0x80, 0xBF, 0xC2, 0xE0, 0xA0,
                                    0xED, 0x9F, 0xF0, 0x90, 0xF4, 0x8F};
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    const size_t size = random() % 24;
    for (size_t i = 0; i < size; ++i) {
      text.push_back(static_cast<char>(alphabet[random() % sizeof(alphabet)]));
    }
    const std::string by_subpart = Replaced(text, Replacement::kMaximalSubpart);
    const std::string by_byte = Replaced(text, Replacement::kEachByte);
    REQUIRE(IsUtf8(by_subpart));
    REQUIRE(IsUtf8(by_byte));
    REQUIRE((by_byte == text) == IsUtf8(text));
    REQUIRE((by_subpart == text) == IsUtf8(text));
    // Nothing reads beyond the end, also where the text is not UTF-8.
    const char* at = text.data();
    while (at < text.data() + text.size()) NextOfValid(&at, text.data() + text.size());
    REQUIRE(at == text.data() + text.size());
  }
}

TEST_CASE("UTF-8 is what RFC 3629 says, at every place of a word") {
  const std::vector<std::string> good = {"\xC2\x80",         "\xDF\xBF",         "\xE0\xA0\x80",
                                         "\xED\x9F\xBF",     "\xEE\x80\x80",     "\xEF\xBF\xBF",
                                         "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "\x7F"};
  const std::vector<std::string> bad = {
      "\x80",         "\xC1\xBF",     "\xC2",         "\xC2\x41",         "\xE0\x9F\xBF",
      "\xE1\x80",     "\xE1\x80\x41", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80",
      "\xF5\x80\x80", "\xF1\x80\x80", "\xFF"};
  for (size_t before = 0; before < 17; ++before) {
    for (const size_t after : {size_t{0}, size_t{3}, size_t{9}}) {
      const auto with = [&](const std::string& text) {
        return std::string(before, 'a') + text + std::string(after, 'b');
      };
      for (const std::string& text : good) CHECK(IsUtf8(with(text)));
      for (const std::string& text : bad) CHECK(ValidUtf8Prefix(with(text)) == before);
    }
  }
}

TEST_CASE("the kinds of characters") {
  const KindTable& table = KindTable::Get();
  CHECK(table.Of('a') == (Kind::kLetter | Kind::kLower));
  CHECK(table.Of('A') == (Kind::kLetter | Kind::kUpper));
  CHECK(table.Of('0') == Kind::kNumber);
  CHECK(table.Of(' ') == Kind::kSpace);
  CHECK(table.Of('\n') == (Kind::kSpace | Kind::kNewline));
  CHECK(table.Of('\'') == Kind::kPunctuationOrSymbol);
  CHECK(table.Of('$') == Kind::kPunctuationOrSymbol);
  CHECK(table.Of(0x00) == 0);
  CHECK(table.Of(0x85) == Kind::kSpace);
  CHECK(table.Of(0xB2) == Kind::kNumber);
  CHECK(table.Of(0x301) == (Kind::kMark | Kind::kUpper | Kind::kLower));
  CHECK(table.Of(0x1C5) == (Kind::kLetter | Kind::kUpper));
  CHECK(table.Of(0x4E2D) == (Kind::kLetter | Kind::kUpper | Kind::kLower));
  CHECK(table.Of(0x200B) == 0);
  CHECK(table.Of(0x3000) == Kind::kSpace);
  CHECK(table.Of(0x1F999) == Kind::kPunctuationOrSymbol);
  CHECK(table.Of(0x50000) == 0);
  CHECK(table.Of(0x10FFFF) == 0);
}

}  // namespace
}  // namespace convene::worker
