#include "worker_runtime/tokenizer/load_tokenizer.h"

#include <catch2/catch.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/tokenizer/compact_vocabulary.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/testing/small_vocabulary.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;

constexpr char kConfig[] = R"({"pat_str": "\\s+|\\S+"})";
constexpr char kTokenizerJson[] = R"({
  "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
  "post_processor": null, "decoder": null,
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

void Write(const TempDir& folder, const std::string& name, const std::string& content) {
  REQUIRE_OK(WriteFileAtomic(folder.File(name), content));
}

std::string KindOf(const std::string& path) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(path);
  REQUIRE_OK(tokenizer);
  return (*tokenizer)->kind();
}

// A SentencePiece model: pieces of a text, a score and a kind, and no more.
std::string SentencePieceFile() {
  const auto piece = [](const std::string& text, char kind) {
    const std::string body = "\x0a" + std::string(1, static_cast<char>(text.size())) + text +
                             std::string("\x15\0\0\x80\xbf\x18", 6) + kind;
    return "\x0a" + std::string(1, static_cast<char>(body.size())) + body;
  };
  return piece("<unk>", 2) + piece("<s>", 3) + piece("</s>", 3) + piece("\u2581", 1) +
         piece("a", 1);
}

TEST_CASE("no path is the byte tokenizer") {
  CHECK(KindOf("") == "byte");
  CHECK(KindOf("byte") == "byte");
}

TEST_CASE("a file's kind comes from its content, whatever its name is") {
  const TempDir folder;
  Write(folder, "tokenizer_config.json", kConfig);
  const std::string name = "tokenizer.model";
  Write(folder, name, testing::TiktokenFile(testing::TokensOf({})));
  CHECK(KindOf(folder.File(name)) == "tiktoken");
  Write(folder, name, testing::TekkenFile(testing::TokensOf({}), 20, "null"));
  CHECK(KindOf(folder.File(name)) == "tekken");
  Write(folder, name, std::string("\n ") + kTokenizerJson);
  CHECK(KindOf(folder.File(name)) == "tokenizer.json (BPE)");
  Write(folder, name, SentencePieceFile());
  CHECK(KindOf(folder.File(name)) == "SentencePiece (unigram)");
}

TEST_CASE("a folder's tokenizer is found in a fixed order") {
  const TempDir folder;
  CHECK_STATUS(LoadTokenizer(folder.path()), absl::StatusCode::kNotFound, "tokenizer.json");
  Write(folder, "tokenizer_config.json", kConfig);
  Write(folder, "x.tiktoken", testing::TiktokenFile(testing::TokensOf({})));
  CHECK(KindOf(folder.path()) == "tiktoken");
  Write(folder, "y.tiktoken", testing::TiktokenFile(testing::TokensOf({})));
  CHECK_STATUS(LoadTokenizer(folder.path()), absl::StatusCode::kInvalidArgument,
               "x.tiktoken, y.tiktoken");
  Write(folder, "tiktoken.model", testing::TiktokenFile(testing::TokensOf({"ab"})));
  CHECK(KindOf(folder.path()) == "tiktoken");
  Write(folder, "tokenizer.model", SentencePieceFile());
  CHECK(KindOf(folder.path()) == "SentencePiece (unigram)");
  Write(folder, "tekken.json", testing::TekkenFile(testing::TokensOf({}), 20, "null"));
  CHECK(KindOf(folder.path()) == "tekken");
  Write(folder, "tokenizer.json", kTokenizerJson);
  CHECK(KindOf(folder.path()) == "tokenizer.json (BPE)");
}

TEST_CASE("what a chat template may print by name comes from the files, else from the frame") {
  const TempDir folder;
  const auto named = [&folder] {
    const auto tokenizer = LoadTokenizer(folder.path());
    REQUIRE_OK(tokenizer);
    const absl::Span<const NamedToken> tokens = (*tokenizer)->named_tokens();
    return std::vector<NamedToken>(tokens.begin(), tokens.end());
  };
  using Named = std::vector<NamedToken>;
  Write(folder, "tokenizer.json", kTokenizerJson);
  CHECK(named().empty());
  Write(folder, "special_tokens_map.json", R"({"sep_token": {"content": "ab", "lstrip": false}})");
  CHECK(named() == Named{{"sep_token", "ab"}});
  Write(folder, "tokenizer_config.json", R"({"eos_token": "b", "pad_token": null,
      "add_bos_token": false, "additional_special_tokens": ["x", {"content": "y"}],
      "extra_special_tokens": {"image_token": "z"}})");
  CHECK(named() == Named{{"eos_token", "b"},
                         {"additional_special_tokens", "x"},
                         {"additional_special_tokens", "y"},
                         {"image_token", "z"},
                         {"sep_token", "ab"}});
  // Mistral's file says itself what stands around a text.
  const TempDir other;
  Write(other, "tekken.json", testing::TekkenFile(testing::TokensOf({}), 20, "null"));
  const auto tekken = LoadTokenizer(other.path());
  REQUIRE_OK(tekken);
  CHECK((*tekken)->named_tokens() ==
        absl::MakeConstSpan(Named{{"bos_token", "<s>"}, {"eos_token", "</s>"}}));
}

TEST_CASE("special tokens that only special_tokens_map.json names are known") {
  const TempDir folder;
  const auto end_of_document = [&folder] {
    const auto tokenizer = LoadTokenizer(folder.path());
    REQUIRE_OK(tokenizer);
    return (*tokenizer)->end_of_document();
  };
  Write(folder, "tokenizer.json", kTokenizerJson);
  CHECK(end_of_document() == std::nullopt);
  Write(folder, "special_tokens_map.json", R"({"eos_token": {"content": "ab", "lstrip": false}})");
  CHECK(end_of_document() == 2);
  Write(folder, "tokenizer_config.json", R"({"eos_token": null})");
  CHECK(end_of_document() == 2);
  Write(folder, "tokenizer_config.json", R"({"eos_token": "b"})");
  CHECK(end_of_document() == 1);
  Write(folder, "special_tokens_map.json", "[]");
  CHECK_STATUS(LoadTokenizer(folder.path()), absl::StatusCode::kInvalidArgument,
               folder.File("special_tokens_map.json") + " is no JSON object");
  Write(folder, "special_tokens_map.json", "{}");
  Write(folder, "tokenizer_config.json", "[]");
  CHECK_STATUS(LoadTokenizer(folder.path()), absl::StatusCode::kInvalidArgument,
               "the tokenizer_config.json beside it is no JSON object");
}

TEST_CASE("what is no tokenizer is refused with its path") {
  const TempDir folder;
  CHECK_STATUS(LoadTokenizer(folder.File("none")), absl::StatusCode::kNotFound,
               folder.File("none"));
  CHECK_STATUS(LoadTokenizer("gpt2"), absl::StatusCode::kNotFound, "is not looked up on the Hub");
  for (const std::string content :
       {"", "hello world", "{}", "{\"config\": 1", "\x0a", "PK\x03\x04"}) {
    INFO(content);
    Write(folder, "file", content);
    CHECK_STATUS(LoadTokenizer(folder.File("file")), absl::StatusCode::kInvalidArgument,
                 folder.File("file"));
  }
}

TEST_CASE("a damaged file is refused with its path and its kind") {
  const TempDir folder;
  Write(folder, "tokenizer_config.json", kConfig);
  const std::string path = folder.File("file");
  const auto is_refused = [&](const std::string& content, const std::string& why) {
    Write(folder, "file", content);
    CHECK_STATUS(LoadTokenizer(path), absl::StatusCode::kInvalidArgument, path + why);
  };
  is_refused(testing::TiktokenFile(testing::TokensOf({})) + "YWI= x\n",
             ", a file of tiktoken's kind: line 257");
  is_refused(testing::TekkenFile(testing::TokensOf({}), 20, "null").substr(0, 500),
             ", a tekken.json: ");
  is_refused("{}", ": ");
  constexpr size_t kUnknownPieceBytes = 16;
  is_refused(SentencePieceFile().substr(kUnknownPieceBytes), ": has 0 pieces of type UNKNOWN");
}

TEST_CASE("a file of ids in a folder cuts its vocabulary") {
  const TempDir folder;
  Write(folder, "tokenizer.json", kTokenizerJson);
  const std::string file = folder.File("tokenizer.json");
  const auto whole = LoadTokenizer(folder.path());
  REQUIRE_OK(whole);
  const std::vector<int32_t> ids = {0, 1};
  Write(folder, kCompactVocabularyFile, CompactVocabularyJson(ids));
  const auto cut = LoadTokenizer(folder.path());
  REQUIRE_OK(cut);
  CHECK((*cut)->vocabulary_size() == 2);
  CHECK((*cut)->fingerprint() == CompactFingerprint((*whole)->fingerprint(), ids));
  std::vector<int32_t> encoded;
  (*cut)->NewEncoder(SpecialText::kAsText)->Encode("ab", &encoded);
  CHECK(encoded == ids);
  CHECK((*LoadTokenizer(file))->vocabulary_size() == 3);
  const auto fault = [&](const std::string& content, const std::string& words) {
    Write(folder, kCompactVocabularyFile, content);
    CHECK_STATUS(LoadTokenizer(folder.path()), absl::StatusCode::kInvalidArgument,
                 folder.File(kCompactVocabularyFile));
    CHECK_STATUS(LoadTokenizer(folder.path()), absl::StatusCode::kInvalidArgument, words);
  };
  fault("{\"original_ids\": [0, 1", "");
  fault("{\"ids\": [0, 1]}", "original_ids");
  fault("{\"original_ids\": [0, \"1\"]}", "original_ids[1]");
  fault("{\"original_ids\": [0, 9]}", "is not one of this tokenizer");
}

}  // namespace
}  // namespace convene::worker
