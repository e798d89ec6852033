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

TokenIds Ids(int vocabulary_size, std::optional<int32_t> end_of_document = 0) {
  return {.made_by = "the tokenizer gpt2/ (BPE)",
          .vocabulary_size = vocabulary_size,
          .document_vocabulary_size = vocabulary_size,
          .end_of_document = end_of_document};
}

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
  CHECK_OK(ApplyTokenIds(Ids(tokenizers), &options));
  CHECK_OK(ValidateOptions(options, Layout{}));
  return options.model.vocabulary_size;
}

TEST_CASE("without a chosen vocabulary the model has the tokenizer's, up to a multiple of 128") {
  CHECK(VocabularyWith(256, {}) == 256);
  CHECK(VocabularyWith(50257, {}) == 50304);
  CHECK(VocabularyWith(50257, {"--layers=2"}) == 50304);
  CHECK(VocabularyWith(128256, {}) == 128256);
  CHECK(VocabularyWith(32001, {}) == 32128);
  // Fewer ids than the default model has, or an unknown number of them, change nothing.
  CHECK(VocabularyWith(20, {}) == 256);
  CHECK(VocabularyWith(0, {}) == 256);
}

TEST_CASE("a chosen vocabulary stays, if the tokenizer's ids fit in") {
  CHECK(VocabularyWith(50257, {"--vocabulary-size=50257"}) == 50257);
  CHECK(VocabularyWith(32000, {"--model=llama-125m"}) == 50304);
  TrainOptions options = Options({"--model=llama-15m", "--tokenizer=gpt2/"});
  CHECK_STATUS(ApplyTokenIds(Ids(50257), &options), kInvalid,
               "the tokenizer gpt2/ (BPE) has ids up to 50256, but the vocabulary_size of "
               "llama-15m is 256: give --vocabulary-size 50304");
}

TEST_CASE("a chosen vocabulary may lack the special tokens that no document has") {
  TokenIds ids = Ids(262145);
  ids.document_vocabulary_size = 262144;
  TrainOptions options = Options({"--model=gemma3-1b"});
  CHECK_OK(ApplyTokenIds(ids, &options));
  CHECK(options.model.vocabulary_size == 262144);
  // A model that is made for the tokenizer has them.
  options = Options({});
  CHECK_OK(ApplyTokenIds(ids, &options));
  CHECK(options.model.vocabulary_size == 262272);
}

TEST_CASE("a document ends with the tokenizer's token, or with the named one") {
  const TokenIds ids = Ids(256, 7);
  TrainOptions options = Options({"--packed-documents"});
  CHECK_OK(ApplyTokenIds(ids, &options));
  CHECK(options.eod_token == 7);
  options = Options({"--packed-documents", "--eod-token=10"});
  CHECK_OK(ApplyTokenIds(ids, &options));
  CHECK(options.eod_token == 10);
}

TEST_CASE("a tokenizer without an end of documents is refused only where documents need one") {
  const TokenIds ids = Ids(256, std::nullopt);
  TrainOptions options = Options({"--packed-documents"});
  CHECK_STATUS(ApplyTokenIds(ids, &options), kInvalid,
               "names no token that ends a document; give --eod-token");
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {}, {"--packed-documents", "--eod-token=10"}, {"--chat-template=chatml"}}) {
    options = Options(arguments);
    CHECK_OK(ApplyTokenIds(ids, &options));
  }
}

}  // namespace
}  // namespace convene::worker
