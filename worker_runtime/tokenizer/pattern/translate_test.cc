#include "worker_runtime/tokenizer/pattern/translate.h"

#include <catch2/catch.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

// golden_test.cc shows that the translations match the right texts.

std::string Words(absl::string_view regex, PatternDialect dialect = PatternDialect::kOniguruma) {
  const auto words = InWordsOfPcre(regex, {.dialect = dialect});
  REQUIRE_OK(words);
  return *words;
}

TEST_CASE("what PCRE2 does in one step stays one step") {
  CHECK(Words("[\\s\\S]+") == "[\\p{White_Space}\\P{White_Space}]+");
  CHECK(Words("[^\\r\\n]*") == "[^\\x{a}\\x{d}]*");
  CHECK(Words("[[a-c][b-f]]") == "[\\x{61}-\\x{66}]");
  CHECK(Words("\\S") == "\\P{White_Space}");
  CHECK(Words("(a|b)") == "(?:\\x{61}|\\x{62})");
  CHECK(Words("[\\p{Sc}$]") == "[\\p{Sc}\\x{24}]");
}

void CheckRefused(PatternDialect dialect, absl::string_view regex, const std::string& why) {
  INFO(std::string(regex));
  CHECK_STATUS(InWordsOfPcre(regex, {.dialect = dialect}), absl::StatusCode::kUnimplemented, why);
}

TEST_CASE("what is not translated is refused by name, with its place") {
  for (const PatternDialect dialect : {PatternDialect::kOniguruma, PatternDialect::kRust}) {
    CheckRefused(dialect, "(a)\\1", "a reference to a group, or an octal number (\\1) at byte 3");
    CheckRefused(dialect, "ab\\X", "the escape \\X at byte 2");
    CheckRefused(dialect, "\\p{Foo}", "the property 'Foo' at byte 0");
    CheckRefused(dialect, "(?x)a", "the group or flag (?x at byte 0");
    CheckRefused(dialect, "(?(1)a)", "the group or flag (?(");
    CheckRefused(dialect, "(*FAIL)", "a verb or callout");
    CheckRefused(dialect, "(?:a?)*", "a repeated group that may match nothing at byte 6");
    CheckRefused(dialect, "(?=a)+", "a quantifier of an edge");
    CheckRefused(dialect, "a**", "a quantifier of a quantifier at byte 2");
    CheckRefused(dialect, "a{2,1}", "a { that begins no number of times at byte 1");
    CheckRefused(dialect, "[a--b]", "a difference of sets");
    CheckRefused(dialect, "[a&&]", "an intersection (&&) with nothing on one side");
    CheckRefused(dialect, "[a-[b]]", "a range that ends in a set");
    CheckRefused(dialect, "[\\w-z]", "a - that stands neither");
    CheckRefused(dialect, "[[:foo:]]", "[: within a set that begins no known [:name:]");
    CheckRefused(dialect, "(?i:\\p{Lu})", "within (?i) a named set that tells cases apart");
    CheckRefused(dialect, "(?i:[\u00e0-\u00ff])", "within (?i) a letter or mark beyond ASCII");
    CheckRefused(dialect, std::string(200, '(') + std::string(200, ')'), "groups nested so deep");
    CheckRefused(dialect, std::string(200, '[') + "a" + std::string(200, ']'),
                 "sets nested so deep");
  }
  CheckRefused(PatternDialect::kOniguruma, "(?i:'ss)", "the letters 'ss'");
  CheckRefused(PatternDialect::kOniguruma, "a(?i)b", "flags in the middle of a group");
  CheckRefused(PatternDialect::kOniguruma, "(?s:.)", "the group or flag (?s");
  CheckRefused(PatternDialect::kOniguruma, "\\xe9", "the number of a character or byte");
  CheckRefused(PatternDialect::kOniguruma, "\\pL", "\\p without braces");
  CheckRefused(PatternDialect::kRust, "\\<a", "the edge of a word");
  CHECK_STATUS(InWordsOfPcre("a)", {.dialect = PatternDialect::kRust}),
               absl::StatusCode::kInvalidArgument, "a ) without its ( at byte 1");
  CHECK_STATUS(InWordsOfPcre("\xFF", {}), absl::StatusCode::kInvalidArgument, "not UTF-8");
}

}  // namespace
}  // namespace convene::worker
