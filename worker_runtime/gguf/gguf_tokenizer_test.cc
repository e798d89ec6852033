#include "worker_runtime/gguf/gguf_tokenizer.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/gguf/testing/gguf_writer.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::worker {
namespace {

using ::convene::testing::TempDir;
using testing::GgufWriter;

// Two control tokens, one of a user, digits, and "ab" by a merge. Does not say what begins a text.
GgufWriter Unsaid(const std::string& pre) {
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", pre)
      .Texts("tokenizer.ggml.tokens", {"<s>", "</s>", "<call>", "a", "b", "ab", "1", "2", "12"})
      .Numbers("tokenizer.ggml.token_type", {3, 3, 4, 1, 1, 1, 1, 1, 1})
      .Texts("tokenizer.ggml.merges", {"a b", "1 2"})
      .Count("tokenizer.ggml.bos_token_id", 0)
      .Count("tokenizer.ggml.eos_token_id", 1)
      .Text("tokenizer.chat_template", "{{ bos_token }}");
  return writer;
}
GgufWriter Vocabulary(const std::string& pre) {
  GgufWriter writer = Unsaid(pre);
  writer.Bool("tokenizer.ggml.add_bos_token", true);
  return writer;
}

std::vector<int32_t> Encode(const std::string& pre, const std::string& text) {
  const TempDir folder;
  const std::string path = folder.File("model.gguf");
  REQUIRE_OK(WriteFileAtomic(path, Vocabulary(pre).File()));
  const auto tokenizer = LoadTokenizer(path);
  REQUIRE_OK(tokenizer.status());
  CHECK((*tokenizer)->vocabulary_size() == 9);
  CHECK((*tokenizer)->end_of_document() == 1);
  CHECK((*tokenizer)->SpecialId("<s>") == 0);
  std::vector<int32_t> ids;
  (*tokenizer)->NewEncoder(SpecialText::kAsTokens)->Encode(text, &ids);
  return ids;
}

TEST_CASE("a file's vocabulary is a tokenizer, by its own way of cutting words") {
  CHECK(Encode("gpt-2", "<s>ab<call>") == std::vector<int32_t>{0, 5, 2});
  CHECK(Encode("gpt-2", "ab12") == std::vector<int32_t>{5, 8});
  // Single digits: no merge crosses the cut between them.
  CHECK(Encode("smollm", "ab12") == std::vector<int32_t>{5, 6, 7});
  CHECK(Encode("llama-bpe", "ab") == std::vector<int32_t>{5});
  CHECK(Encode("qwen2", "ab") == std::vector<int32_t>{5});
}

TEST_CASE("what begins a text where a file does not say it is llama.cpp's") {
  const auto prefix = [](const GgufWriter& writer) {
    const TempDir folder;
    REQUIRE_OK(WriteFileAtomic(folder.File("model.gguf"), writer.File()));
    const auto tokenizer = LoadTokenizer(folder.File("model.gguf"));
    REQUIRE_OK(tokenizer.status());
    const auto ids = (*tokenizer)->prefix();
    return std::vector<int32_t>(ids.begin(), ids.end());
  };
  CHECK(prefix(Unsaid("llama-bpe")) == std::vector<int32_t>{0});
  CHECK(prefix(Unsaid("gpt-2")).empty());
  GgufWriter without = Unsaid("llama-bpe");
  CHECK(prefix(without.Bool("tokenizer.ggml.add_bos_token", false)).empty());
}

// As Llama 2's: the unknown piece, two control pieces, bytes, then pieces of which "ab" is merged
// first. In newer files the unknown piece is of type 3, as control pieces are.
GgufWriter SentencePieceVocabulary(int32_t unknown_type = 2, bool has_scores = true) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {unknown_type, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(absl::StrFormat("<0x%02X>", byte));
    types.push_back(6);
  }
  for (const char* const piece : {"\u2581", "a", "b", "ab", "ba", "\u2581ab"}) {
    tokens.push_back(piece);
    types.push_back(1);
  }
  tokens.push_back("<call>");
  types.push_back(4);
  std::vector<float> scores(tokens.size());
  for (size_t id = 259; id < scores.size(); ++id) {
    scores[id] = has_scores ? 259.0f - static_cast<float>(id) : -1000;
  }
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", tokens)
      .Reals("tokenizer.ggml.scores", scores)
      .Numbers("tokenizer.ggml.token_type", types)
      .Count("tokenizer.ggml.bos_token_id", 1)
      .Count("tokenizer.ggml.eos_token_id", 2);
  return writer;
}

// The id of a character that a vocabulary without bytes does not have.
int32_t UnknownId(const std::vector<std::string>& special, const std::vector<int32_t>& types,
                  int key) {
  std::vector<std::string> tokens = special;
  tokens.insert(tokens.end(), {"\u2581", "a"});
  std::vector<int32_t> all_types = types;
  all_types.resize(tokens.size(), 1);
  GgufWriter writer;
  writer.Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", tokens)
      .Reals("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0))
      .Numbers("tokenizer.ggml.token_type", all_types);
  if (key >= 0) writer.Count("tokenizer.ggml.unknown_token_id", key);
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("model.gguf"), writer.File()));
  const auto tokenizer = LoadTokenizer(folder.File("model.gguf"));
  REQUIRE_OK(tokenizer.status());
  std::vector<int32_t> ids;
  (*tokenizer)->NewEncoder(SpecialText::kAsText)->Encode("\u00e9", &ids);
  REQUIRE(ids.size() == 2);
  return ids[1];
}

TEST_CASE("the unknown piece of a SentencePiece vocabulary may stand there as a control piece") {
  CHECK(UnknownId({"<s>", "</s>", "<unk>"}, {3, 3, 3}, -1) == 2);
  CHECK(UnknownId({"<s>", "</s>", "[UNK]"}, {3, 3, 3}, 2) == 2);
  CHECK(UnknownId({"[UNK]", "<s>", "</s>"}, {3, 3, 3}, -1) == 0);  // as in llama.cpp
  CHECK(UnknownId({"<unk>", "<s>", "</s>"}, {3, 3, 2}, 0) == 2);
}

TEST_CASE("a SentencePiece vocabulary is a tokenizer, with the space before a text as it says") {
  constexpr int32_t kSpace = 259, kA = 260, kB = 261, kAb = 262, kSpaceAb = 264, kCall = 265;
  constexpr int32_t kFirstByte = 3;
  struct Case {
    const char* text;
    std::vector<int32_t> ids;
  };
  const auto check = [](const GgufWriter& vocabulary, const std::vector<Case>& cases) {
    const TempDir folder;
    const std::string path = folder.File("model.gguf");
    REQUIRE_OK(WriteFileAtomic(path, vocabulary.File()));
    const auto tokenizer = LoadTokenizer(path);
    REQUIRE_OK(tokenizer.status());
    CHECK((*tokenizer)->vocabulary_size() == 266);
    CHECK((*tokenizer)->end_of_document() == 2);
    CHECK((*tokenizer)->prefix().size() == 1);
    const auto encoder = (*tokenizer)->NewEncoder(SpecialText::kAsTokens);
    for (const Case& each : cases) {
      std::vector<int32_t> ids;
      encoder->Encode(each.text, &ids);
      CAPTURE(each.text);
      CHECK(ids == each.ids);
      CHECK((*tokenizer)->Decode(ids, true) == each.text);
    }
  };
  for (const int32_t unknown_type : {2, 3}) {
    check(SentencePieceVocabulary(unknown_type),
          {{"ab", {kSpaceAb}},
           {"aba", {kSpaceAb, kA}},  // "ab" before "ba"
           {"a  b", {kSpace, kA, kSpace, kSpace, kB}},
           {"b<call>", {kSpace, kB, kCall}},
           {"\u00e9", {kSpace, kFirstByte + 0xC3, kFirstByte + 0xA9}}});
  }
  check(SentencePieceVocabulary().Bool("tokenizer.ggml.add_space_prefix", false),
        {{"ab", {kAb}}, {" ab", {kSpaceAb}}});
}

TEST_CASE("its config names the special tokens and carries the chat template") {
  const std::string bytes = Vocabulary("smollm").File();
  const auto made = TokenizerOf(GgufFile::Parse(bytes).value());
  REQUIRE_OK(made.status());
  CHECK(made->config_json == R"({"bos_token":"<s>","eos_token":"</s>","add_bos_token":true,)"
                             R"("chat_template":"{{ bos_token }}"})");
}

TEST_CASE("a vocabulary that is not read here is refused by its name") {
  const auto refuse = [](const GgufWriter& writer, absl::StatusCode code, const char* why) {
    const std::string bytes = writer.File();
    CHECK_STATUS(TokenizerOf(GgufFile::Parse(bytes).value()), code, why);
  };
  refuse(GgufWriter(), absl::StatusCode::kNotFound, "no key 'tokenizer.ggml.model'");
  refuse(GgufWriter().Text("tokenizer.ggml.model", "bert"), absl::StatusCode::kUnimplemented,
         "of the kind 'bert'");
  refuse(GgufWriter()
             .Text("tokenizer.ggml.model", "llama")
             .Texts("tokenizer.ggml.tokens", {"<unk>", "a"})
             .Reals("tokenizer.ggml.scores", {0})
             .Numbers("tokenizer.ggml.token_type", {2, 1}),
         absl::StatusCode::kInvalidArgument,
         "has 2 tokens, 1 scores (tokenizer.ggml.scores) and 2");
  refuse(Vocabulary("falcon"), absl::StatusCode::kUnimplemented, "cuts words as 'falcon'");
  refuse(GgufWriter().Text("tokenizer.ggml.model", "gpt2"), absl::StatusCode::kUnimplemented,
         "does not say how it cuts words (tokenizer.ggml.pre");
  refuse(SentencePieceVocabulary(2, /*has_scores=*/false), absl::StatusCode::kUnimplemented,
         "does not say which are merged first: take the tokenizer");
  GgufWriter wrong = Vocabulary("qwen2");
  refuse(wrong.Count("tokenizer.ggml.padding_token_id", 9), absl::StatusCode::kInvalidArgument,
         "'tokenizer.ggml.padding_token_id' is 9, and it has 9 tokens");
  const TempDir folder;
  REQUIRE_OK(WriteFileAtomic(folder.File("cut.gguf"), Vocabulary("qwen2").File().substr(0, 99)));
  CHECK_STATUS(LoadTokenizer(folder.File("cut.gguf")), absl::StatusCode::kInvalidArgument,
               "cut.gguf: key 'tokenizer.ggml.pre': it is no whole GGUF file");
}

}  // namespace
}  // namespace convene::worker
