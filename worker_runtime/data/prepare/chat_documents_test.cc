#include "worker_runtime/data/prepare/chat_documents.h"

#include <memory>
#include <optional>
#include <string>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/gguf/testing/gguf_writer.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

constexpr char kTemplate[] =
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}";
constexpr char kLine[] =
    R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cde"}]})";

EncodedDocument Encoded(const DocumentFormat& format) {
  auto encoder = format.new_encoder();
  REQUIRE_OK(encoder);
  EncodedDocument document;
  REQUIRE_OK((*encoder)->Encode(kLine, &document));
  return document;
}

TEST_CASE("a template becomes a format that marks the answers, or nothing where all count") {
  const TempDir directory;
  const std::string path = directory.File("chat.jinja");
  REQUIRE_OK(WriteFileAtomic(path, kTemplate));
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const auto answers = ChatDocuments(path, {}, tokenizer.get());
  REQUIRE_OK(answers);
  const EncodedDocument document = Encoded(*answers);
  CHECK(std::string(document.ids.begin(), document.ids.begin() + 7) == "[ab]cde");
  REQUIRE(document.counted.size() == document.ids.size());
  CHECK(std::string(document.counted.begin(), document.counted.begin() + 7) ==
        std::string("\0\0\0\0\1\1\1", 7));
  const auto all = ChatDocuments(path, {.train_on = TrainOn::kAll}, tokenizer.get());
  REQUIRE_OK(all);
  CHECK(Encoded(*all).counted.empty());
}

TEST_CASE("the key tells templates by their content, and the targets that count") {
  const TempDir directory;
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const auto key = [&](const std::string& path, TrainOn train_on,
                       std::optional<absl::CivilDay> date = {}) {
    const auto format = ChatDocuments(path, {.train_on = train_on, .date = date}, tokenizer.get());
    REQUIRE_OK(format);
    return format->key;
  };
  const std::string first = directory.File("first.jinja");
  const std::string second = directory.File("second.jinja");
  REQUIRE_OK(WriteFileAtomic(first, kTemplate));
  REQUIRE_OK(WriteFileAtomic(second, kTemplate));
  const std::string before = key(first, TrainOn::kAnswers);
  CHECK(key(second, TrainOn::kAnswers) == before);
  CHECK(key(first, TrainOn::kAll) != before);
  CHECK(key(first, TrainOn::kAnswers, absl::CivilDay(2026, 11, 30)) != before);
  REQUIRE_OK(WriteFileAtomic(second, std::string(kTemplate) + "!"));
  CHECK(key(second, TrainOn::kAnswers) != before);
  REQUIRE_OK(WriteFileAtomic(directory.File("tokenizer_config.json"), R"({"bos_token": "x"})"));
  CHECK(key(first, TrainOn::kAnswers) != before);
}

TEST_CASE("the key has nothing of the weights that a template lies beside") {
  const TempDir directory;
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  const auto key = [&](const std::string& chat_template, float weight) {
    const std::string path = directory.File("model.gguf");
    REQUIRE_OK(
        WriteFileAtomic(path, testing::GgufWriter()
                                  .Text("tokenizer.ggml.model", "gpt2")
                                  .Text("tokenizer.ggml.pre", "gpt-2")
                                  .Texts("tokenizer.ggml.tokens", {"<s>", "</s>", "a", "b", "ab"})
                                  .Numbers("tokenizer.ggml.token_type", {3, 3, 1, 1, 1})
                                  .Texts("tokenizer.ggml.merges", {"a b"})
                                  .Count("tokenizer.ggml.bos_token_id", 0)
                                  .Count("tokenizer.ggml.eos_token_id", 1)
                                  .Text("tokenizer.chat_template", chat_template)
                                  .Floats("weight", {2}, {1, weight})
                                  .File()));
    const auto format = ChatDocuments(path, {.train_on = TrainOn::kAll}, tokenizer.get());
    REQUIRE_OK(format);
    return format->key;
  };
  CHECK(key(kTemplate, 1) == key(kTemplate, 2));
  CHECK(key(kTemplate, 1) != key("{{ messages }}", 1));
}

TEST_CASE("a template that is not there, or that the tokenizer has no tokens for, is refused") {
  const std::unique_ptr<Tokenizer> tokenizer = MakeByteTokenizer();
  CHECK_STATUS(ChatDocuments("none.jinja", {}, tokenizer.get()), absl::StatusCode::kNotFound,
               "none.jinja");
  CHECK_STATUS(ChatDocuments("llama3", {}, tokenizer.get()), absl::StatusCode::kInvalidArgument,
               "");
}

}  // namespace
}  // namespace convene::worker
