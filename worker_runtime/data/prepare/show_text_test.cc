#include "worker_runtime/data/prepare/show_text.h"

#include <catch2/catch.hpp>

#include "worker_runtime/data/prepare/testing/letter_tokenizer.h"

namespace convene::worker {
namespace {

TEST_CASE("a file is described in lines, whatever its format knows") {
  TokenDescription description = {.kind = "Convene token file",
                                  .path = "a.bin",
                                  .file_bytes = 2048,
                                  .tokens = 1000,
                                  .documents = 12,
                                  .longest_document = 500,
                                  .shortest_document = 1,
                                  .vocabulary_size = 259,
                                  .tokenizer = {"letters", "/letters", 71, 256}};
  CHECK(DescriptionText(description, 1000) ==
        "kind        Convene token file, 2.0 KiB\n"
        "documents   12 (1 to 500 tokens)\n"
        "tokens      1,000\n"
        "vocabulary  259\n"
        "tokenizer   letters, /letters, fingerprint 0000000000000047, token 256 ends a document\n"
        "counted     all tokens count in the loss\n");
  description.tokenizer.compact = CompactVocabulary{.original_ids = {}, .whole_size = 128256};
  CHECK_THAT(DescriptionText(description, 1000),
             Catch::Contains("vocabulary  259 of the tokenizer's 128,256 (compact)\n"));
  description.has_counted = true;
  description.documents.reset();
  description.vocabulary_size.reset();
  description.tokenizer = {};
  CHECK(DescriptionText(description, 250) ==
        "kind        Convene token file, 2.0 KiB\n"
        "documents   the format does not know them\n"
        "tokens      1,000\n"
        "vocabulary  the file does not say\n"
        "tokenizer   the file does not say\n"
        "counted     250 tokens (25.0%) count in the loss\n");
}

TEST_CASE("a sample shows which tokens count") {
  const LetterTokenizer letters;
  DocumentSample sample = {.ids = {'a', 'b', 0xC3, 0xA9, 'c', 256}};
  CHECK(SampleText(sample, letters, MarkStyle::kPlain) == "abéc\n");
  CHECK(SampleIdsText(sample) == "97 98 195 169 99 256\n");
  sample.counted = {0, 0, 1, 1, 0, 1};
  CHECK(SampleText(sample, letters, MarkStyle::kPlain) == "ab{+é+}c{++}\n");
  CHECK(SampleIdsText(sample) == "97 98 {+195 169+} 99 {+256+}\n");
}

TEST_CASE("a blend's table has each file's share") {
  CHECK(BlendText({{"long/a.bin", 1'000'000, 7}, {"b.bin", 500'000, 3}}) ==
        "file          share             tokens     read in a pass  times\n"
        "long/a.bin   70.00%          1,000,000          1,050,000  1.05\n"
        "b.bin        30.00%            500,000            450,000  0.90\n"
        "a pass is 1,500,000 tokens, as many as all files have\n");
  // The sum of these is no number.
  CHECK_THAT(BlendText({{"a.bin", 10, 1e308}, {"b.bin", 10, 1e308}}),
             Catch::Contains("a.bin   50.00%") && Catch::Contains("b.bin   50.00%"));
}

}  // namespace
}  // namespace convene::worker
