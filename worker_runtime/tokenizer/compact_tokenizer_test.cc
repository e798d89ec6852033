#include "worker_runtime/tokenizer/compact_tokenizer.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/byte_bpe_tokenizer.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/tokenizer/fingerprint.h"
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

TEST_CASE("a tokenizer without a token for each byte is refused, and so is another one's cut") {
  const auto unigram = LoadTokenizer(std::string(kGolden) + "unigram_rules.model");
  REQUIRE_OK(unigram);
  CHECK_STATUS(IndispensableIds(**unigram), absl::StatusCode::kUnimplemented,
               "without a token for the byte 0x00 alone cannot have a compact vocabulary");
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
