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

std::vector<std::string> Pieces(const std::string& regex, const std::string& text) {
  const absl::StatusOr<std::unique_ptr<SplitPattern>> pattern = MakePcrePattern(regex);
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

TEST_CASE("patterns that we cannot run are refused with the place") {
  CHECK_STATUS(MakePcrePattern("a(b"), absl::StatusCode::kInvalidArgument, "parenthesis");
  CHECK_STATUS(MakePcrePattern("[a"), absl::StatusCode::kInvalidArgument, "at byte 2");
  CHECK_STATUS(MakePcrePattern("[a&&[b]]"), absl::StatusCode::kUnimplemented, "at byte 2");
  CHECK_STATUS(MakePcrePattern("(?=(\\d{3})+(?!\\d))"), absl::StatusCode::kUnimplemented,
               "may match the empty text");
  CHECK_STATUS(MakePcrePattern("[a[^b]]"), absl::StatusCode::kUnimplemented, "negated set");
  CHECK_STATUS(MakePcrePattern("\\"), absl::StatusCode::kInvalidArgument, "at byte 1");
}

TEST_CASE("a pattern that goes back for ever gives up and goes on") {
  std::string text(50, 'a');
  const Texts pieces = Pieces("(a+)+b", text + "c" + std::string(6000, 'd') + "ab");
  REQUIRE(!pieces.empty());
  CHECK(pieces.front().size() == 4096);
  CHECK(pieces.back() == "ab");
}

TEST_CASE("a search in parts finds what one search finds") {
  const auto pattern = MakePcrePattern("(?<!b)a|c+");
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
