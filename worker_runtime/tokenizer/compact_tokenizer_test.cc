#include "worker_runtime/tokenizer/compact_tokenizer.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/json/tokenizer_json.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/tokenizer/testing/small_vocabulary.h"

namespace convene::worker {
namespace {

using Ids = std::vector<int32_t>;

constexpr char kGolden[] = "worker_runtime/tokenizer/sentencepiece/golden/";

// Bytes, "he" 256, "ll" 257, "hell" 258, "o " 259, "é" 260, and three special tokens.
std::unique_ptr<Tokenizer> Words() {
  ByteBpeParts parts;
  parts.kind = "tiktoken";
  parts.tokens = testing::TokensOf({"he", "ll", "hell", "o ", "\xc3\xa9"});
  parts.pattern = "[\\s\\S]+";
  parts.special_tokens = {{"<begin>", 300}, {"<turn>", 301}, {"<end>", 302}};
  parts.prefix = {300};
  parts.end_of_document = 302;
  auto tokenizer = MakeByteBpeTokenizer(std::move(parts));
  REQUIRE_OK(tokenizer);
  return *std::move(tokenizer);
}

// The indispensable ids and `more`, ascending.
Ids WithMore(const Tokenizer& whole, const Ids& more) {
  auto ids = IndispensableIds(whole);
  REQUIRE_OK(ids);
  ids->insert(ids->end(), more.begin(), more.end());
  std::sort(ids->begin(), ids->end());
  ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
  return *ids;
}

std::unique_ptr<Tokenizer> Compact(std::unique_ptr<Tokenizer> whole, const Ids& more) {
  Ids ids = WithMore(*whole, more);
  auto compact = MakeCompactTokenizer(std::move(whole), std::move(ids));
  REQUIRE_OK(compact);
  return *std::move(compact);
}

Ids Encoded(const Tokenizer& tokenizer, const std::string& text,
            SpecialText special_text = SpecialText::kAsText) {
  Ids ids;
  tokenizer.NewEncoder(special_text)->Encode(text, &ids);
  return ids;
}

TEST_CASE("ids are dense, in the order of the original ones") {
  const auto compact = Compact(Words(), {258, 260});
  CHECK(compact->vocabulary_size() == 260);  // 256 bytes, "hell", "é", <begin>, <end>
  CHECK(compact->kind() == "tiktoken");
  CHECK(compact->end_of_document() == 259);
  CHECK(compact->prefix() == Ids{258});
  CHECK(compact->suffix().empty());
  CHECK(Encoded(*compact, "hell\xc3\xa9") == Ids{256, 257});
  CHECK(compact->SpecialId("<end>") == 259);
  CHECK(compact->SpecialTextOf(259) == "<end>");
  CHECK(compact->AddedTextOf(258) == "<begin>");
  CHECK(compact->Decode(Ids{258, 256, 257, 259, 260, -1}, true) == "<begin>hell\xc3\xa9<end>");
  std::string bytes;
  for (const int32_t id : {257, 258, 260, -1}) compact->AppendTokenBytes(id, &bytes);
  CHECK(bytes == "\xc3\xa9");
}

TEST_CASE("a token that was cut away is its bytes") {
  const auto compact = Compact(Words(), {256});
  CHECK(Encoded(*compact, "he hello ") == Ids{256, ' ', 'h', 'e', 'l', 'l', 'o', ' '});
  CHECK(compact->SpecialId("<turn>") == std::nullopt);
  CHECK(Encoded(*compact, "<turn>he<end>", SpecialText::kAsTokens) ==
        Ids{'<', 't', 'u', 'r', 'n', '>', 256, 258});
}

TEST_CASE("the fingerprint is of the tokenizer and of what it is cut to") {
  const auto whole = Words();
  const auto one = Compact(Words(), {256});
  const auto same = Compact(Words(), {256, 'h'});
  const auto other = Compact(Words(), {257});
  CHECK(one->fingerprint() == same->fingerprint());
  CHECK(one->fingerprint() != other->fingerprint());
  CHECK(one->fingerprint() != whole->fingerprint());
  CHECK(one->fingerprint() == CompactFingerprint(whole->fingerprint(), WithMore(*whole, {256})));
}

TEST_CASE("any text decodes as with the whole vocabulary, whatever was cut away") {
  std::mt19937 random(3);
  const std::vector<std::string> parts = {" ",   "the ",     " a",  "hell",
                                          "o ",  "\xc3\xa9", "\n",  "\xf0\x9f\xa6\x99",
                                          "  x", "\xff",     "ing", "\xe2\x96\x81"};
  const auto load = [](const std::string& name) {
    if (name.empty()) return Words();
    auto tokenizer = LoadTokenizer(kGolden + name);
    REQUIRE_OK(tokenizer);
    return *std::move(tokenizer);
  };
  for (const std::string name : {"", "bpe_bytes.model"}) {
    const auto whole = load(name);
    for (int cut = 0; cut < 20; ++cut) {
      Ids more;
      for (int32_t id = 0; id < whole->vocabulary_size(); ++id) {
        if (static_cast<int>(random() % 20) < cut) more.push_back(id);
      }
      const auto compact = Compact(load(name), more);
      for (int i = 0; i < 50; ++i) {
        std::string text;
        for (uint32_t k = random() % 9; k > 0; --k) text += parts[random() % parts.size()];
        CAPTURE(name, cut, text);
        REQUIRE(compact->Decode(Encoded(*compact, text), false) ==
                whole->Decode(Encoded(*whole, text), false));
      }
    }
  }
}

// Byte level, as SmolLM2, but with tokens for the bytes of "<>aeh" alone; "he" 5, "hea" 6, and the
// special token 7 with this text.
std::unique_ptr<Tokenizer> OfFewBytes(const std::string& special) {
  auto tokenizer = ReadTokenizerJson(
      absl::StrCat(R"({"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},)",
                   R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"<":0,">":1,)",
                   R"("a":2,"e":3,"h":4,"he":5,"hea":6},"merges":["h e","he a"]},)",
                   R"("added_tokens":[{"id":7,"content":")", special, R"(","special":true}]})"),
      "");
  REQUIRE_OK(tokenizer);
  return *std::move(tokenizer);
}

TEST_CASE("a byte that no token has needs no token of its own") {
  CHECK(IndispensableIds(*OfFewBytes("<a>")).value() == Ids{0, 1, 2, 3, 4});
  const auto compact = Compact(OfFewBytes("<a>"), {5});
  CHECK(compact->vocabulary_size() == 6);
  // The whole tokenizer drops such a byte too.
  CHECK(Encoded(*compact, "a\x0bhe heax") == Ids{2, 5, 4, 3, 2});
  CHECK(Encoded(*compact, "he<a>", SpecialText::kAsTokens) == Ids{5, 0, 2, 1});
}

TEST_CASE("a token whose bytes have no tokens is refused, and so is another one's cut") {
  CHECK_STATUS(IndispensableIds(*OfFewBytes("<b>")), absl::StatusCode::kUnimplemented,
               "(BPE), whose token 7 has the byte 0x62, which is no token alone, cannot have a");
  const auto unigram = LoadTokenizer(std::string(kGolden) + "unigram_rules.model");
  REQUIRE_OK(unigram);
  CHECK_STATUS(IndispensableIds(**unigram), absl::StatusCode::kUnimplemented,
               "which is no token alone, cannot have a compact vocabulary");
  CHECK_STATUS(MakeCompactTokenizer(MakeByteTokenizer(), {1, 2}),
               absl::StatusCode::kInvalidArgument, "is not one of this tokenizer (byte, 256");
  Ids ids = WithMore(*Words(), {});
  std::swap(ids[0], ids[1]);
  CHECK_STATUS(MakeCompactTokenizer(Words(), ids), absl::StatusCode::kInvalidArgument,
               "not one of");
  CHECK_STATUS(MakeCompactTokenizer(Words(), WithMore(*Words(), {303})),
               absl::StatusCode::kInvalidArgument, "not one of");
}

}  // namespace
}  // namespace convene::worker
