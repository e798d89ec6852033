#include "worker_runtime/inference/text_stream.h"

#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/tokenizer/json/tokenizer_json.h"

namespace convene::worker {
namespace {

using Pieces = std::vector<std::string>;

// The text that each byte of `text` lets show, and the rest at the end.
Pieces Shown(const std::string& text, const Pieces& stops) {
  const auto tokenizer = MakeByteTokenizer();
  TextStream stream(*tokenizer, stops, /*prompt=*/{});
  Pieces pieces;
  for (const char c : text) {
    pieces.push_back(stream.Add(static_cast<uint8_t>(c)));
    if (stream.is_stopped()) return pieces;
  }
  pieces.push_back(stream.Finish());
  return pieces;
}

std::string Joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST_CASE("Characters are shown whole") {
  CHECK(Shown("a\xE2\x82\xAC!", {}) == Pieces{"a", "", "", "\xE2\x82\xAC", "!", ""});
  CHECK(Shown("\xF0\x9F\x98\x80", {}) == Pieces{"", "", "", "\xF0\x9F\x98\x80", ""});
  // A character that never becomes whole.
  CHECK(Shown("a\xE2\x82", {}) == Pieces{"a", "", "", "\xEF\xBF\xBD"});
  CHECK(Joined(Shown("\xE2\x82z", {})) == "\xEF\xBF\xBDz");
}

TEST_CASE("The text ends before a stop text, whose beginning is held back") {
  CHECK(Shown("one stop two", {"stop"}) == Pieces{"o", "n", "e", " ", "", "", "", ""});
  CHECK(Shown("stostop", {"stop"}) == Pieces{"", "", "", "sto", "", "", ""});
  CHECK(Shown("ststx", {"stop"}) == Pieces{"", "", "st", "", "stx", ""});
  CHECK(Shown("sto", {"stop"}) == Pieces{"", "", "", "sto"});
  CHECK(Joined(Shown("aXbYY", {"YY", "Xb"})) == "a");
  CHECK(Joined(Shown("abcd", {"bcd", "bc"})) == "a");
  CHECK(Joined(Shown("caf\xC3\xA9!", {"\xC3\xA9"})) == "caf");
}

TEST_CASE("Nothing is shown behind a stop text") {
  const auto tokenizer = MakeByteTokenizer();
  TextStream stream(*tokenizer, {"."}, /*prompt=*/{});
  CHECK(stream.Add('a') == "a");
  CHECK(stream.Add('.').empty());
  CHECK(stream.is_stopped());
  CHECK(stream.Add('b').empty());
  CHECK(stream.Finish().empty());
}

// The texts of the tokens, one by one, and the rest.
std::string Answer(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                   const std::vector<int32_t>& tokens) {
  TextStream stream(tokenizer, {}, prompt);
  std::string text;
  for (const int32_t token : tokens) text += stream.Add(token);
  return text + stream.Finish();
}

TEST_CASE("The space between a prompt and its answer is shown, and none before a text") {
  // As Llama 2's, which takes off the space before a text.
  const auto tokenizer = ReadTokenizerJson(R"({
      "model": {"type": "BPE", "vocab": {"\u2581ab": 0, "ab": 1}, "merges": []},
      "added_tokens": [{"id": 2, "content": "<s>", "special": true}],
      "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}})",
                                           "");
  REQUIRE_OK(tokenizer.status());
  CHECK(Answer(**tokenizer, {0}, {0, 0}) == " ab ab");
  CHECK(Answer(**tokenizer, {0}, {1}) == "ab");
  CHECK(Answer(**tokenizer, {2, 0, 0, 0, 0, 0, 0, 0, 0}, {0, 1}) == " abab");
  CHECK(Answer(**tokenizer, {0, 2}, {0}) == " ab");
  CHECK(Answer(**tokenizer, {}, {0, 0}) == "ab ab");
  CHECK(Answer(**tokenizer, {2}, {0}) == "ab");
}

TEST_CASE("A prompt that ends within a character leaves the answer whole characters") {
  const auto tokenizer = MakeByteTokenizer();
  CHECK(Answer(*tokenizer, {'a', 0xF0, 0x9F, 0x98}, {0x80, 'z'}) == "\xEF\xBF\xBDz");
  CHECK(Answer(*tokenizer, {'a', 0xE2, 0x82, 0xAC}, {'z'}) == "z");
  // The last ones of a longer prompt may begin within one.
  CHECK(Answer(*tokenizer, {0xE2, 0x82, 0xAC, 'a', 'b', 'c', 'd', 'e'}, {'z'}) == "z");
}

TEST_CASE("bytes that the decoder takes with those before them leave the answer whole characters") {
  // A run of bytes that is no UTF-8 is U+FFFD for each of them, the good ones too.
  const auto tokenizer = ReadTokenizerJson(R"({
      "model": {"type": "BPE", "byte_fallback": true, "merges": [],
                "vocab": {"<0x0A>": 0, "<0xF0>": 1, "<0x9F>": 2, "a": 3}},
      "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}})",
                                           "");
  REQUIRE_OK(tokenizer.status());
  CHECK(Answer(**tokenizer, {}, {0, 1, 2}) == "\n\xEF\xBF\xBD\xEF\xBF\xBD");
  CHECK(Answer(**tokenizer, {3, 0}, {1}) == "\xEF\xBF\xBD");
  CHECK(Answer(**tokenizer, {}, {0, 1, 3}) ==
        "\n\xEF\xBF\xBD"
        "a");
}

TEST_CASE("a stop text that is a special token's ends the answer at the token") {
  const auto tokenizer = ReadTokenizerJson(R"({
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
      "added_tokens": [{"id": 2, "content": "<|end|>", "special": true}],
      "decoder": {"type": "Fuse"}})",
                                           "");
  REQUIRE_OK(tokenizer.status());
  TextStream stream(**tokenizer, {"<|end|>", "ab"}, /*prompt=*/{1});
  CHECK(stream.Add(1) == "b");
  CHECK(stream.Add(0).empty());  // may be the other's beginning
  CHECK(stream.Add(2) == "a");
  CHECK(stream.is_stopped());
  CHECK(stream.Add(1).empty());
  CHECK(stream.Finish().empty());
}

}  // namespace
}  // namespace convene::worker
