#include "worker_runtime/data/prepare/json_field.h"

#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

std::string Found(const std::string& path, const std::string& line) {
  JsonField field(path);
  const auto text = field.Find(line);
  REQUIRE_OK(text);
  return std::string(*text);
}

void CheckBroken(const std::string& line, const std::string& why) {
  JsonField field("text");
  CHECK_STATUS(field.Find(line), absl::StatusCode::kInvalidArgument, why);
}

TEST_CASE("a text is found wherever its field stands, with its escapes undone") {
  CHECK(Found("text", R"({"text": "one"})") == "one");
  CHECK(Found("text", R"(  {"id": 7, "text": "", "meta": {"text": 5}}  )").empty());
  CHECK(Found("text", R"({"text": "a\n\"\\\/\u00e9\ud83d\ude00"})") == "a\n\"\\/é😀");
  CHECK(Found("text", "{\"text\": \"é😀\"}") == "é😀");
  CHECK(Found("text", R"({"text": "first", "text": "last"})") == "last");
  CHECK(Found("text", R"({"a": [{"text": "no"}], "text": "yes", "b": {"text": "no"}})") == "yes");
}

TEST_CASE("dots lead into objects, and into no others") {
  CHECK(Found("a.b.c", R"({"a": {"x": {"b": {"c": "no"}}, "b": {"c": "yes", "d": [{}]}}})") ==
        "yes");
  CHECK(Found("a.b", R"({"a": {"c": {}, "b": "yes"}, "b": "no"})") == "yes");
  JsonField field("a.b");
  for (const std::string line : {R"({"b": "x"})", R"({"a": "x"})", R"({"a": [{"b": "x"}]})",
                                 R"({"c": {"b": "x"}, "a": {}})", R"({"a.b": "x"})"}) {
    INFO(line);
    CHECK_STATUS(field.Find(line), absl::StatusCode::kInvalidArgument, "no field 'a.b'");
  }
}

// Python writes them for a missing value unless it is told not to.
TEST_CASE("values that are no number pass where nobody asks for them, and are no text") {
  CHECK(Found("text", R"({"a": NaN, "text": "x", "b": -Infinity, "c": [Infinity, {"d": NaN}]})") ==
        "x");
  CHECK(Found("a.b", R"({"a": {"x": -Infinity, "b": "y"}})") == "y");
  CheckBroken(R"({"text": NaN})", "the field 'text' is not a text");
  CheckBroken(R"({"text": "x", "a": Nan})", "broken JSON at byte 22");
  CheckBroken(R"({"text": "x", "a": -})", "broken JSON");
  CheckBroken("NaN", "not a JSON object");
}

TEST_CASE("each kind of broken line has its reason") {
  CheckBroken(R"({"text": "a)", "byte 12: the text ends too early");
  CheckBroken(R"({"text": "a")", "the text ends too early");
  CheckBroken(R"({"text": "a", "n": 1 2})", "broken JSON at byte 22");
  CheckBroken(R"({"text": "a"} x)", "broken JSON at byte 15");
  CheckBroken(R"({"text": "\ud800"})", "surrogate");
  CheckBroken(R"({"text": "\\\ud83d\ude00\ude00"})", "byte 25: half a surrogate pair");
  CheckBroken("{\"text\": \"a\xff\"}", "byte 12: not UTF-8");
  CheckBroken("{\"text\": \"a\xed\xa0\x80\"}", "byte 12: not UTF-8");
  CheckBroken("{\"text\": \"a\tb\"}", "broken JSON");
  CheckBroken(std::string("{\"text\": \"a\0b\"}", 15), "byte 12: a zero byte");
  CheckBroken(std::string("{\"text\": \"a\"}\0", 14), "byte 14: a zero byte");
  CheckBroken("", "the text ends too early");
  CheckBroken("[1, 2]", "not a JSON object");
  CheckBroken("\"text\"", "not a JSON object");
  CheckBroken(R"({"TEXT": "a", "id": 1})",
              "no field 'text' (its keys: TEXT, id): name the one with the text (--text-field of "
              "the trainer, --field of convene data prepare)");
  CheckBroken("{}", "no field 'text'");
  CheckBroken(R"({"messages": []})", "give its template with --chat-template PATH");
  for (const std::string value : {"1", "null", "true", "{}", "[\"a\"]", "1.5e3"}) {
    CheckBroken("{\"text\": " + value + "}", "the field 'text' is not a text");
  }
}

TEST_CASE("an object's own keys are listed, as they may be shown") {
  CHECK(*KeysOfJsonObject(R"({"id": NaN, "meta": {"a": [{"b": 1}]}, "c\td": [], "id": 2})") ==
        std::vector<std::string>{"id", "meta", "c?d", "id"});
  CHECK(KeysOfJsonObject("{\"" + std::string(100, 'k') + "\": 1}")->at(0) == std::string(40, 'k'));
  CHECK(KeysOfJsonObject("{}")->empty());
  for (const std::string line : {"[{\"a\": 1}]", "1", "", "{\"a\": 1} x"}) {
    CHECK_FALSE(KeysOfJsonObject(line).ok());
  }
}

// The reader looks at sixteen bytes at a time.
TEST_CASE("wherever an escape or a control character stands, it is seen") {
  for (size_t before = 0; before < 20; ++before) {
    for (size_t between = 0; between < 20; ++between) {
      const std::string head(before, 'x'), middle(between, 'y');
      std::string line = "{\"text\": \"" + head + "\\n", text = head + "\n";
      for (int escape = 0; escape < 20; ++escape) {
        line += middle + "\\\\";
        text += middle + "\\";
      }
      if (Found("text", line + "\"}") != text) FAIL(before << ", " << between);
    }
    for (char control = 1; control < 0x20; ++control) {
      CheckBroken("{\"text\": \"" + std::string(before, 'x') + control + "yyyyyyyyyyyyyyyyyy\"}",
                  "broken JSON at byte " + std::to_string(before + 11));
    }
  }
}

TEST_CASE("nesting has a limit, whatever the depth") {
  const auto nested = [](int depth) {
    return "{\"a\": " + std::string(depth - 1, '[') + std::string(depth - 1, ']') +
           ", \"text\": \"x\"}";
  };
  CHECK(Found("text", nested(kMostJsonDepth)) == "x");
  CheckBroken(nested(kMostJsonDepth + 1), "nested deeper than 512");
  CheckBroken(nested(1'000'000), "nested deeper than 512");
  CheckBroken("{\"a\": " + std::string(1'000'000, '['), "nested deeper than 512");
}

}  // namespace
}  // namespace convene::worker
