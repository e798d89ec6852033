#include "worker_runtime/options/tokenizer_options.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/options/load_options.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// All that ApplyTokenizer asks for.
class SizedTokenizer final : public Tokenizer {
 public:
  SizedTokenizer(int vocabulary_size, std::optional<int32_t> end_of_document)
      : vocabulary_size_(vocabulary_size), end_of_document_(end_of_document) {}

  std::string kind() const override { return "sized"; }
  uint64_t fingerprint() const override { return 1; }
  int vocabulary_size() const override { return vocabulary_size_; }
  std::unique_ptr<Encoder> NewEncoder(SpecialText) const override { return nullptr; }
  std::optional<int32_t> SpecialId(absl::string_view) const override { return std::nullopt; }
  std::string SpecialTextOf(int32_t) const override { return ""; }
  absl::Span<const int32_t> prefix() const override { return {}; }
  absl::Span<const int32_t> suffix() const override { return {}; }
  std::optional<int32_t> end_of_document() const override { return end_of_document_; }
  void AppendTokenBytes(int32_t, std::string*) const override {}
  std::string Decode(absl::Span<const int32_t>, bool) const override { return ""; }

 private:
  const int vocabulary_size_;
  const std::optional<int32_t> end_of_document_;
};

TrainOptions Options(std::vector<std::string> arguments) {
  arguments.push_back("--data=a.txt");
  arguments.push_back("--token-cache-dir=/cache");
  const auto options =
      LoadOptions(arguments, [](const std::string&) { return std::optional<std::string>(); });
  REQUIRE_OK(options);
  return **options;
}

int VocabularyWith(int tokenizers, const std::vector<std::string>& arguments) {
  TrainOptions options = Options(arguments);
  CHECK_OK(ApplyTokenizer(SizedTokenizer(tokenizers, 0), &options));
  CHECK_OK(ValidateOptions(options, Layout{}));
  return options.model.vocabulary_size;
}

TEST_CASE("without a chosen vocabulary the model has the tokenizer's, up to a multiple of 128") {
  CHECK(VocabularyWith(256, {}) == 256);
  CHECK(VocabularyWith(50257, {}) == 50304);
  CHECK(VocabularyWith(50257, {"--layers=2"}) == 50304);
  CHECK(VocabularyWith(128256, {}) == 128256);
  CHECK(VocabularyWith(32001, {}) == 32128);
  // A tokenizer of fewer ids than the default model has changes nothing.
  CHECK(VocabularyWith(20, {}) == 256);
}

TEST_CASE("a chosen vocabulary stays, if the tokenizer's ids fit in") {
  CHECK(VocabularyWith(50257, {"--vocabulary-size=50257"}) == 50257);
  CHECK(VocabularyWith(32000, {"--model=llama-125m"}) == 50304);
  TrainOptions options = Options({"--model=llama-15m", "--tokenizer=gpt2/"});
  CHECK_STATUS(ApplyTokenizer(SizedTokenizer(50257, 0), &options), kInvalid,
               "the tokenizer gpt2/ (sized) has ids up to 50256, but the vocabulary_size of "
               "llama-15m is 256: give --vocabulary-size 50304");
}

TEST_CASE("a document ends with the tokenizer's token, or with the named one") {
  const SizedTokenizer tokenizer(256, 7);
  TrainOptions options = Options({"--packed-documents"});
  CHECK_OK(ApplyTokenizer(tokenizer, &options));
  CHECK(options.eod_token == 7);
  options = Options({"--packed-documents", "--eod-token=10"});
  CHECK_OK(ApplyTokenizer(tokenizer, &options));
  CHECK(options.eod_token == 10);
}

TEST_CASE("a tokenizer without an end of documents is refused only where documents need one") {
  const SizedTokenizer tokenizer(256, std::nullopt);
  TrainOptions options = Options({"--packed-documents"});
  CHECK_STATUS(ApplyTokenizer(tokenizer, &options), kInvalid,
               "names no token that ends a document; give --eod-token");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {}, {"--packed-documents", "--eod-token=10"}, {"--chat-template=chatml"}}) {
    options = Options(arguments);
    CHECK_OK(ApplyTokenizer(tokenizer, &options));
  }
}

}  // namespace
}  // namespace convene::worker
