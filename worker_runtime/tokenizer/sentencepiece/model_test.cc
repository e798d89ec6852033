#include "worker_runtime/tokenizer/sentencepiece/model.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/sentencepiece/charsmap.h"
#include "worker_runtime/tokenizer/sentencepiece/model_file.h"

namespace convene::worker {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

std::string ModelBytes(const std::string& name) {
  const auto bytes = ReadFile("worker_runtime/tokenizer/sentencepiece/golden/" + name + ".model");
  REQUIRE_OK(bytes);
  return *bytes;
}

std::unique_ptr<Tokenizer> Read(const std::string& name) {
  auto tokenizer = ReadSentencePiece(ModelBytes(name));
  REQUIRE_OK(tokenizer);
  return *std::move(tokenizer);
}

std::vector<int32_t> Encode(const Tokenizer& tokenizer, absl::string_view text,
                            SpecialText special_text = SpecialText::kAsText) {
  std::vector<int32_t> ids;
  tokenizer.NewEncoder(special_text)->Encode(text, &ids);
  return ids;
}

// Protobuf's encoding of a string or message field shorter than 128 bytes, and of a number.
std::string Field(char number, absl::string_view content) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(content.size())} +
         std::string(content);
}
std::string Number(char number, char value) { return {static_cast<char>(number << 3), value}; }
std::string Piece(absl::string_view text, char type) {
  return Field(1, Field(1, text) + Number(3, type));
}

TEST_CASE("The config says what stands around a text, and may not add tokens") {
  const std::string bytes = ModelBytes("bpe_bytes");
  const auto plain = Read("bpe_bytes");
  const auto none = ReadSentencePiece(bytes, R"({"add_bos_token": false})");
  REQUIRE_OK(none);
  CHECK((*none)->prefix().empty());
  CHECK((*none)->fingerprint() != plain->fingerprint());
  const auto both = ReadSentencePiece(
      bytes,
      R"({"add_bos_token": true, "add_eos_token": true, "added_tokens_decoder": {"1": "<s>"}})");
  REQUIRE_OK(both);
  CHECK((*both)->prefix() == absl::Span<const int32_t>({1}));
  CHECK((*both)->suffix() == absl::Span<const int32_t>({2}));
  CHECK((*both)->fingerprint() != plain->fingerprint());
  CHECK_STATUS(
      ReadSentencePiece(bytes, R"({"added_tokens_decoder": {"900": {"content": "<|im_end|>"}}})"),
      absl::StatusCode::kUnimplemented, "use the model's tokenizer.json");
  CHECK_STATUS(ReadSentencePiece(Piece("<unk>", 2) + Piece("a", 1), R"({"add_eos_token": true})"),
               kInvalid, "no control piece");
}

TEST_CASE("Names, special tokens and what surrounds a text") {
  const auto tokenizer = Read("bpe_bytes");
  CHECK(tokenizer->kind() == "SentencePiece (BPE)");
  CHECK(tokenizer->vocabulary_size() == 900);
  CHECK(tokenizer->SpecialId("<s>") == 1);
  CHECK(tokenizer->SpecialId("[INST]") == 3);
  CHECK(tokenizer->SpecialId("[INST") == std::nullopt);
  CHECK(tokenizer->SpecialId("") == std::nullopt);
  CHECK(tokenizer->SpecialTextOf(4) == "[/INST]");
  CHECK(tokenizer->SpecialTextOf(800).empty());
  CHECK(tokenizer->SpecialTextOf(-1).empty());
  CHECK(tokenizer->SpecialTextOf(900).empty());
  CHECK(tokenizer->prefix() == absl::Span<const int32_t>({1}));
  CHECK(tokenizer->suffix().empty());
  CHECK(tokenizer->end_of_document() == 2);
  const auto without_bos = Read("unigram_bytes");
  CHECK(without_bos->kind() == "SentencePiece (unigram)");
  CHECK(without_bos->prefix().empty());
  CHECK(without_bos->SpecialTextOf(*without_bos->end_of_document()) == "<|end|>");
  CHECK(without_bos->fingerprint() != tokenizer->fingerprint());
  CHECK(Read("bpe_bytes")->fingerprint() == tokenizer->fingerprint());
}

TEST_CASE("A special token's text is text, or cuts the text where it counts as a token") {
  const auto tokenizer = Read("bpe_bytes");
  const std::string text = "[INST] hi [/INST][INST]";
  for (const int32_t id : Encode(*tokenizer, text)) CHECK(tokenizer->SpecialTextOf(id).empty());
  std::vector<int32_t> expected = {3};
  for (const int32_t id : Encode(*tokenizer, " hi ")) expected.push_back(id);
  expected.insert(expected.end(), {4, 3});
  CHECK(Encode(*tokenizer, text, SpecialText::kAsTokens) == expected);
  CHECK(tokenizer->Decode(expected, false) == " hi ");
  CHECK(tokenizer->Decode(expected, true) == "[INST] hi [/INST][INST]");
}

TEST_CASE("The bytes of the tokens are the bytes of the text, the dummy space first") {
  const auto tokenizer = Read("bpe_bytes");
  const std::string text = "größer 🦙  \x01 中";
  std::string bytes;
  for (const int32_t id : Encode(*tokenizer, text)) tokenizer->AppendTokenBytes(id, &bytes);
  CHECK(bytes == " " + text);
  bytes.clear();
  for (const int32_t id : {0, 1, 3, -1, 900, 1 << 30}) tokenizer->AppendTokenBytes(id, &bytes);
  CHECK(bytes.empty());
  CHECK(tokenizer->Decode({-1, 900, 1 << 30}, true).empty());
}

TEST_CASE("An unknown run at the end of one text does not swallow that of the next") {
  const auto tokenizer = Read("bpe_suffix");
  const auto encoder = tokenizer->NewEncoder(SpecialText::kAsText);
  std::vector<int32_t> ids;
  encoder->Encode("\U0001F999", &ids);
  const std::vector<int32_t> once = ids;
  encoder->Encode("\U0001F999", &ids);
  CHECK(ids.size() == 2 * once.size());
}

TEST_CASE("What is no model is refused, with the piece and the reason") {
  CHECK_STATUS(ReadSentencePiece(""), kInvalid, "is not a SentencePiece model");
  CHECK_STATUS(ReadSentencePiece(Piece("a", 1)), kInvalid, "has 0 pieces of type UNKNOWN");
  CHECK_STATUS(ReadSentencePiece("IQ== 0\nIg== 1\n"), kInvalid, "is not a SentencePiece model");
  const std::string unknown = Piece("<unk>", 2);
  CHECK_OK(ReadSentencePiece(unknown + Piece("a", 1)));
  CHECK_STATUS(ReadSentencePiece(unknown + Piece("a", 9)), kInvalid,
               "piece 1: has the unknown type 9");
  CHECK_STATUS(ReadSentencePiece(unknown + Piece("", 1)), kInvalid, "is empty");
  CHECK_STATUS(ReadSentencePiece(unknown + unknown), kInvalid,
               "piece 1 (\"<unk>\"): stands in the file twice");
  CHECK_STATUS(ReadSentencePiece(unknown + Piece("\xff", 1)), kInvalid,
               "piece 1 (\"?\"): has a NUL or is not UTF-8");
  CHECK_STATUS(ReadSentencePiece(unknown + Piece("<0x41>", 6)), kInvalid,
               "does not fall back to bytes");
  const std::string falls_back = Field(2, std::string("\x98\x02\x01", 3));  // field 35 = true
  CHECK_STATUS(ReadSentencePiece(unknown + falls_back), kInvalid, "has pieces for 0 of the 256");
  CHECK_STATUS(ReadSentencePiece(unknown + Field(2, Number(3, 4))),
               absl::StatusCode::kUnimplemented, "model_type 4 (characters)");
  CHECK_STATUS(ReadSentencePiece(unknown + Field(3, Field(2, "\x80"))), kInvalid,
               "the normalizer's precompiled_charsmap is cut short");
}

TEST_CASE("A file is recognised by its first bytes") {
  CHECK(LooksLikeSentencePiece(ModelBytes("unigram_rules").substr(0, 16)));
  CHECK_FALSE(LooksLikeSentencePiece("IQ== 0\nIg== 1\n"));
  CHECK_FALSE(LooksLikeSentencePiece("{\"version\": \"1.0\"}"));
  CHECK_FALSE(LooksLikeSentencePiece("\n"));
  CHECK_FALSE(LooksLikeSentencePiece(""));
}

TEST_CASE("A model cut short or with flipped bits is refused or works, and never crashes") {
  const std::string name = GENERATE("bpe_rules", "bpe_unused", "unigram_rules");
  const std::string whole = ModelBytes(name);
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    std::string damaged = whole;
    if (i % 2 == 0) {
      damaged.resize(random() % whole.size());
    } else {
      for (int flips = 0; flips < 4; ++flips) {
        damaged[random() % whole.size()] ^= static_cast<char>(1 << random() % 8);
      }
    }
    const auto tokenizer = ReadSentencePiece(damaged);
    refused += !tokenizer.ok();
    if (!tokenizer.ok()) continue;
    const auto ids = Encode(**tokenizer, "the ﬁ A\xCC\x88 \xFF<sep>> 中 foobar");
    for (const int32_t id : ids) REQUIRE((id >= 0 && id < (*tokenizer)->vocabulary_size()));
    (*tokenizer)->Decode(ids, true);
  }
  CHECK(refused > 50);
  CHECK(refused < 200);
}

TEST_CASE("A character map finds the longest and the shortest rule") {
  const auto model = ParseModelFile(ModelBytes("unigram_rules"));
  REQUIRE_OK(model);
  const auto map = Charsmap::Read(model->normalizer.precompiled_charsmap);
  REQUIRE_OK(map);
  CHECK(map->Longest("\xEF\xAC\x83x").replacement == "ffi");
  CHECK(map->Longest("\xEF\xAC\x83x").length == 3);
  CHECK(map->Longest("e\xCC\x81\xCC\x82").length == 5);
  CHECK(map->Shortest("e\xCC\x81\xCC\x82").length == 3);
  CHECK(map->Shortest("e\xCC\x81\xCC\x82").replacement == "\xC3\xA9");
  CHECK(map->Longest("\xE2\x80\x8B").replacement.empty());
  CHECK(map->Longest("\xE2\x80\x8B").length == 3);
  CHECK(map->Longest("ex").length == 0);
  CHECK(map->Longest("").length == 0);
  CHECK(map->MayBegin('e', 0xCC));
  CHECK_FALSE(map->MayBegin('e', 'x'));
  CHECK(Charsmap().Longest("\xEF\xAC\x83").length == 0);
  CHECK_STATUS(Charsmap::Read("abc"), kInvalid, "cut short");
  const std::string long_text(5000, 'x');
  CHECK_STATUS(Charsmap::Read(std::string(4, '\0') + long_text), kInvalid, "by 5000 bytes");
  CHECK_STATUS(Charsmap::Read(absl::string_view("\x04\x00\x00\x00unit\xFF", 9)), kInvalid,
               "not UTF-8");
}

TEST_CASE("A character map whose trie runs in a circle finds nothing, and soon") {
  // Unit 0 leads to unit 0 ^ 2 ^ 'a', where 'a' stands; its offset leads back to itself.
  std::vector<uint32_t> units(256, 0);
  const uint32_t place = 2 ^ 'a';
  units[0] = 2 << 10;
  units[place] = (place ^ place ^ 'a') << 10 | 'a';
  std::string blob(4 + units.size() * 4, '\0');
  const auto bytes = static_cast<uint32_t>(units.size() * 4);
  std::memcpy(blob.data(), &bytes, 4);
  std::memcpy(blob.data() + 4, units.data(), bytes);
  const auto map = Charsmap::Read(blob + "x");
  REQUIRE_OK(map);
  CHECK(map->MayBegin('a', 'a'));
  CHECK_FALSE(map->MayBegin('a', 'b'));
  const std::string text(100000, 'a');
  for (size_t i = 0; i < text.size(); ++i) {
    REQUIRE(map->Longest(absl::string_view(text).substr(i)).length == 0);
  }
}

}  // namespace
}  // namespace convene::worker
