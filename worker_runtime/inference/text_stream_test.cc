#include "worker_runtime/inference/text_stream.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "worker_runtime/tokenizer/byte_tokenizer.h"

namespace convene::worker {
namespace {

using Pieces = std::vector<std::string>;

// The text that each byte of `text` lets show, and the rest at the end.
Pieces Shown(const std::string& text, const Pieces& stops) {
  const auto tokenizer = MakeByteTokenizer();
  TextStream stream(*tokenizer, stops);
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
  TextStream stream(*tokenizer, {"."});
  CHECK(stream.Add('a') == "a");
  CHECK(stream.Add('.').empty());
  CHECK(stream.is_stopped());
  CHECK(stream.Add('b').empty());
  CHECK(stream.Finish().empty());
}

}  // namespace
}  // namespace convene::worker
