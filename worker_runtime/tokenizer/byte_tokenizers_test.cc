// tiktoken's files and tekken.json, with small vocabularies. The real ones: tests/tokenizers.
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/tokenizer/known_vocabularies.h"
#include "worker_runtime/tokenizer/tekken.h"
#include "worker_runtime/tokenizer/testing/small_vocabulary.h"
#include "worker_runtime/tokenizer/tiktoken.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {
namespace {

using Ids = std::vector<int32_t>;

Ids Encoded(const Tokenizer& tokenizer, absl::string_view text,
            SpecialText special_text = SpecialText::kAsText) {
  Ids ids;
  tokenizer.NewEncoder(special_text)->Encode(text, &ids);
  return ids;
}

constexpr char kConfig[] = R"({
  "pat_str": "\\s+|\\S+",
  "bos_token": {"content": "<s>"}, "eos_token": "<end>", "add_bos_token": true,
  "added_tokens_decoder": {
    "300": {"content": "<s>"}, "301": {"content": "<end>"}, "302": {"content": "<end>more"},
    "97": {"content": "a"}
  }})";

std::unique_ptr<Tokenizer> Small() {
  auto tokenizer =
      ReadTiktoken(testing::TiktokenFile(testing::TokensOf({"he", "ll", "hell"})), kConfig);
  REQUIRE_OK(tokenizer);
  return *std::move(tokenizer);
}

TEST_CASE("a tiktoken file with its pattern in the config") {
  const std::unique_ptr<Tokenizer> tokenizer = Small();
  CHECK(tokenizer->kind() == "tiktoken");
  CHECK(tokenizer->vocabulary_size() == 303);
  CHECK(Encoded(*tokenizer, "hello hell") == Ids{258, 'o', ' ', 258});
  CHECK(tokenizer->prefix() == absl::MakeConstSpan(Ids{300}));
  CHECK(tokenizer->suffix().empty());
  CHECK(tokenizer->end_of_document() == 301);
  CHECK(tokenizer->SpecialId("<s>") == 300);
  // The vocabulary's own "a" stays an ordinary token.
  CHECK(!tokenizer->SpecialId("a").has_value());
  CHECK(tokenizer->SpecialTextOf(302) == "<end>more");
  CHECK(tokenizer->SpecialTextOf(97).empty());
}

TEST_CASE("special tokens are cut from the text only when they are asked for") {
  const std::unique_ptr<Tokenizer> tokenizer = Small();
  CHECK(Encoded(*tokenizer, "<end>").size() == 5);
  CHECK(Encoded(*tokenizer, "a<end><end>moreb<en", SpecialText::kAsTokens) ==
        Ids{'a', 301, 302, 'b', '<', 'e', 'n'});
  CHECK(Encoded(*tokenizer, "<s", SpecialText::kAsTokens) == Ids{'<', 's'});
}

TEST_CASE("bytes that are no UTF-8 become U+FFFD, and texts come back") {
  const std::unique_ptr<Tokenizer> tokenizer = Small();
  const Ids replacement = {0xEF, 0xBF, 0xBD};
  CHECK(Encoded(*tokenizer, "\xF0\x9F\xA6") == replacement);
  for (const std::string text : {"", "hello  \n", "\u00e9\U0001f999", "a\xEF\xBF\xBD"}) {
    CHECK(tokenizer->Decode(Encoded(*tokenizer, text), false) == text);
  }
  CHECK(tokenizer->Decode({0xF0, 0x9F, 300, 'a', 0xA6, -1, 5000}, false) == "\uFFFDa\uFFFD");
  CHECK(tokenizer->Decode({300, 258, 301}, true) == "<s>hell<end>");
  std::string bytes;
  for (const int32_t id : {300, 258, -1, 5000, 260}) tokenizer->AppendTokenBytes(id, &bytes);
  CHECK(bytes == "hell");
}

TEST_CASE("fingerprints tell vocabularies, patterns and special tokens apart") {
  const auto fingerprint = [](const std::vector<std::string>& more, const std::string& config) {
    const auto tokenizer = ReadTiktoken(testing::TiktokenFile(testing::TokensOf(more)), config);
    REQUIRE_OK(tokenizer);
    return (*tokenizer)->fingerprint();
  };
  const uint64_t one = fingerprint({"he"}, kConfig);
  CHECK(one == fingerprint({"he"}, kConfig));
  CHECK(one != fingerprint({"eh"}, kConfig));
  CHECK(one != fingerprint({"he"}, R"({"pat_str": "\\s+|\\S+"})"));
  CHECK(one != fingerprint({"he"}, R"({"pat_str": "\\S+"})"));
}

TEST_CASE("damaged tiktoken files are refused with the line") {
  const auto status = [](const std::string& content, const std::string& config = kConfig) {
    return ReadTiktoken(content, config).status();
  };
  const std::string good = testing::TiktokenFile(testing::TokensOf({}));
  CHECK_STATUS(status(good + "YWI= x\n"), absl::StatusCode::kInvalidArgument, "line 257");
  CHECK_STATUS(status(good + "%%% 256\n"), absl::StatusCode::kInvalidArgument, "line 257");
  CHECK_STATUS(status(good + "YWI= 99999999\n"), absl::StatusCode::kInvalidArgument, "far above");
  CHECK_STATUS(status(good + "YWI= 7\n"), absl::StatusCode::kInvalidArgument, "earlier line");
  CHECK_STATUS(status(good + "YWI= -1\n"), absl::StatusCode::kInvalidArgument, "line 257");
  CHECK_STATUS(status(good + "YQ== 256\n"), absl::StatusCode::kInvalidArgument, "same bytes");
  CHECK_STATUS(status(good.substr(0, 70)), absl::StatusCode::kInvalidArgument, "all 256");
  CHECK_STATUS(status(good, ""), absl::StatusCode::kInvalidArgument, "pat_str");
  CHECK_STATUS(status(good, "[1"), absl::StatusCode::kInvalidArgument, "tokenizer_config.json");
  CHECK_STATUS(status(good, R"({"pat_str": "("})"), absl::StatusCode::kInvalidArgument,
               "regular expression");
  CHECK_STATUS(status(good, R"({"pat_str": "a", "added_tokens_decoder": {"x": "b"}})"),
               absl::StatusCode::kInvalidArgument, "added_tokens_decoder");
}

TEST_CASE("a tekken.json: special tokens first, then tokens by rank") {
  const std::string file = testing::TekkenFile(testing::TokensOf({"he", "ll"}), 30, "null");
  CHECK(LooksLikeTekken(file));
  const auto tokenizer = ReadTekken(file);
  REQUIRE_OK(tokenizer);
  CHECK((*tokenizer)->vocabulary_size() == 288);
  CHECK(Encoded(**tokenizer, "hello") == Ids{286, 287, 30 + 'o'});
  CHECK((*tokenizer)->prefix() == absl::MakeConstSpan(Ids{1}));
  CHECK((*tokenizer)->end_of_document() == 2);
  CHECK((*tokenizer)->SpecialId("[INST]") == 3);
  CHECK((*tokenizer)->SpecialTextOf(29) == "<SPECIAL_29>");
  CHECK((*tokenizer)->Decode(Ids{1, 286, 287, 3}, false) == "hell");
}

TEST_CASE("a tekken.json that names its special tokens") {
  const auto tokenizer =
      ReadTekken(testing::TekkenFile(testing::TokensOf({}), 4,
                                     R"([{"rank": 0, "token_str": "<unk>", "is_control": true},
                              {"rank": 2, "token_str": "[X]", "is_control": true}])"));
  REQUIRE_OK(tokenizer);
  CHECK((*tokenizer)->SpecialId("[X]") == 2);
  CHECK((*tokenizer)->SpecialId("<SPECIAL_3>") == 3);
  CHECK((*tokenizer)->prefix().empty());
  CHECK(!(*tokenizer)->end_of_document().has_value());
  CHECK(Encoded(**tokenizer, "a[X]b", SpecialText::kAsTokens) == Ids{4 + 'a', 2, 4 + 'b'});
}

TEST_CASE("damaged tekken.json files are refused") {
  const std::string good = testing::TekkenFile(testing::TokensOf({}), 20, "null");
  const auto with = [&good](const std::string& from, const std::string& to) {
    std::string file = good;
    const size_t at = file.find(from);
    REQUIRE(at != std::string::npos);
    return ReadTekken(file.replace(at, from.size(), to)).status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(ReadTekken(good.substr(0, 500)), kInvalid, "ends too early");
  CHECK_STATUS(ReadTekken("[]"), kInvalid, "should be an object");
  CHECK_STATUS(ReadTekken("{}"), kInvalid, "config");
  CHECK_STATUS(with("\"v3\"", "\"v99\""), absl::StatusCode::kUnimplemented, "v99");
  CHECK_STATUS(with(": 276", ": 277"), kInvalid, "256 tokens");
  CHECK_STATUS(with(": 276", ": 1e9"), kInvalid, "default_vocab_size");
  CHECK_STATUS(with(": 20", ": 99999999999"), kInvalid, "default_num_special_tokens");
  CHECK_STATUS(with("{\"rank\": 5,", "{\"rank\": 6,"), kInvalid, "vocab[5] is no token of rank 5");
  CHECK_STATUS(with("\"AA==\"", "\"%\""), kInvalid, "vocab[0]");
  CHECK_STATUS(with("null", "7"), kInvalid, "special_tokens");
  CHECK_STATUS(with("null", R"([{"rank": 20, "token_str": "x"}])"), kInvalid, "rank");
  CHECK_STATUS(ReadTekken(std::string(100'000, '[')), kInvalid, "ends too early");
}

TEST_CASE("token = byte") {
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  CHECK(Encoded(*tokenizer, "a\xFF") == Ids{'a', 0xFF});
  CHECK(tokenizer->vocabulary_size() == 256);
  CHECK(tokenizer->end_of_document() == 0);
  CHECK(tokenizer->Decode(Ids{'a', 0xFF, 300, -5}, false) == "a\uFFFD");
}

TEST_CASE("known vocabularies have as many special tokens as their programs give them") {
  for (const std::string name : {"Llama 3", "Llama 4", "Qwen"}) {
    INFO(name);
    const bool is_llama3 = name == "Llama 3", is_llama4 = name == "Llama 4";
    const KnownVocabulary* const known =
        is_llama3   ? FindKnownVocabulary(128'000, 0x30f04ad2575fb929)
        : is_llama4 ? FindKnownVocabulary(200'000, 0x5d973349bd55bc74)
                    : FindKnownVocabulary(151'643, 0xc59612ae2b6a1540);
    REQUIRE(known != nullptr);
    CHECK(known->name == name);
    const SpecialTokens tokens(known->special_tokens);
    CHECK(tokens.tokens().size() == (is_llama3 ? 256 : is_llama4 ? 2048 : 208));
    if (is_llama3) {
      CHECK(tokens.IdOf("<|eot_id|>") == 128'009);
      CHECK(tokens.IdOf("<|reserved_special_token_2|>") == 128'012);
      CHECK(tokens.IdOf("<|reserved_special_token_245|>") == 128'255);
    }
    if (is_llama4) {
      CHECK(tokens.IdOf("<|image_start|>") == 200'080);
      CHECK(tokens.IdOf("<|vision_reserved_special_token_1047|>") == 201'133);
      CHECK(tokens.IdOf("<|reasoning_thinking_end|>") == 201'143);
    }
  }
  CHECK(FindKnownVocabulary(128'000, 1) == nullptr);
}

}  // namespace
}  // namespace convene::worker
