#include "worker_runtime/tokenizer/pcre_pattern.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {
namespace {

std::vector<std::string> Pieces(const std::string& regex, const std::string& text,
                                PatternDialect dialect = PatternDialect::kOniguruma) {
  const absl::StatusOr<std::unique_ptr<SplitPattern>> pattern = MakePcrePattern(regex, dialect);
  REQUIRE_OK(pattern);
  std::vector<TextRange> buffer;
  std::vector<std::string> pieces;
  (*pattern)->ForEach(text, &buffer, [&](const TextRange& range) {
    pieces.push_back(text.substr(range.begin, range.end - range.begin));
  });
  return pieces;
}

using Texts = std::vector<std::string>;

TEST_CASE("matches come left to right") {
  CHECK(Pieces("[0-9]{2}", "a12345b67") == Texts{"12", "34", "67"});
  CHECK(Pieces("x+", "axxb\u00e9x") == Texts{"xx", "x"});
  CHECK(Pieces("(?<=a)b", "abcb") == Texts{"b"});
  CHECK(Pieces("a\\Kb?", "abab") == Texts{"b", "b"});
  CHECK(Pieces("z", "").empty());
}

TEST_CASE("spaces, words and sets mean what they mean to Oniguruma and Rust") {
  // U+180E is no white space; U+0085 and U+3000 are.
  CHECK(Pieces("\\s+", "a\u180eb\u0085\u3000c") == Texts{"\u0085\u3000"});
  CHECK(Pieces("[^\\S]+", "a b\u180e") == Texts{" "});
  // The mark belongs to the word.
  CHECK(Pieces("\\w+", "cafe\u0301 x_1") == Texts{"cafe\u0301", "x_1"});
  CHECK(Pieces("[\\w.]+", "a\u0301.b c") == Texts{"a\u0301.b", "c"});
  CHECK(Pieces("\\W+", "a\u0301.,b") == Texts{".,"});
  CHECK(Pieces("(?i:'s)", "'S 's '\u017f") == Texts{"'S", "'s", "'\u017f"});
  // BLOOM's pattern: a set within a set.
  CHECK(Pieces(" ?[^(\\s|[.,!?\u2026\u3002])]+", "ab, (c) d\u3002") == Texts{"ab", "c", " d"});
  CHECK(Pieces("[a[-z]]", "-bz") == Texts{"-", "z"});
  CHECK(Pieces("[[x-]z]", "-yz") == Texts{"-", "z"});
  CHECK(Pieces("[[:digit:]x]+", "12xy") == Texts{"12x"});
}

TEST_CASE("each dialect has its own words") {
  constexpr PatternDialect kRust = PatternDialect::kRust;
  CHECK(Pieces("\\w+", "a\u00bdb") == Texts{"a\u00bdb"});
  CHECK(Pieces("\\w+", "a\u00bdb", kRust) == Texts{"a", "b"});
  CHECK(Pieces("[\\w]+", "a\u00bdb") == Texts{"a", "b"});
  CHECK(Pieces("[0-9]{1,3}+", "12345") == Texts{"12345"});
  CHECK(Pieces("[0-9]{1,3}+", "12345", kRust) == Texts{"123", "45"});
  CHECK(Pieces("a$", "a\na\n") == Texts{"a", "a"});
  CHECK(Pieces("a$", "a\nba", kRust) == Texts{"a"});
  CHECK(Pieces("[[:alpha:]]+", "a\u00e9") == Texts{"a\u00e9"});
  CHECK(Pieces("[[:alpha:]]+", "a\u00e9", kRust) == Texts{"a"});
  CHECK(Pieces("[[:punct:]]+", "a+$") == Texts{"+$"});
  CHECK(Pieces("\\h+", "xaF0 ") == Texts{"aF0"});
  // The katakana-hiragana mark is of several scripts, none of which is its own.
  CHECK(Pieces("\\p{Katakana}+", "\u30ab\u30fc") == Texts{"\u30ab"});
}

TEST_CASE("patterns that we cannot run are refused with the place") {
  const auto made = [](const std::string& regex) {
    return MakePcrePattern(regex, PatternDialect::kOniguruma);
  };
  CHECK_STATUS(made("a(b"), absl::StatusCode::kInvalidArgument, "a ( without its ) at byte 2");
  CHECK_STATUS(made("[a"), absl::StatusCode::kInvalidArgument, "a set without its ] at byte 0");
  CHECK_STATUS(made("x\\"), absl::StatusCode::kInvalidArgument, "a backslash at its end at byte 1");
  CHECK_STATUS(made("(?=([0-9]{3})+(?![0-9]))"), absl::StatusCode::kUnimplemented,
               "may match the empty text");
  CHECK_STATUS(made("(?<=a+)b"), absl::StatusCode::kUnimplemented, "lookbehind");
}

TEST_CASE("a pattern that goes back for ever gives up and goes on") {
  std::string text(50, 'a');
  const Texts pieces = Pieces("(a+)+b", text + "c" + std::string(6000, 'd') + "ab");
  REQUIRE(!pieces.empty());
  CHECK(pieces.front().size() == 4096);
  CHECK(pieces.back() == "ab");
}

TEST_CASE("a search in parts finds what one search finds") {
  const auto pattern = MakePcrePattern("(?<!b)a|c+", PatternDialect::kRust);
  REQUIRE_OK(pattern);
  const std::string text = "abaccabaacc";
  std::vector<TextRange> whole, parts;
  (*pattern)->FindSome(text, 0, text.size(), &whole);
  for (size_t at = 0; at < text.size();) at = (*pattern)->FindSome(text, at, 1, &parts);
  CHECK(whole == parts);
  CHECK(whole.size() == 5);
}

}  // namespace
}  // namespace convene::worker
