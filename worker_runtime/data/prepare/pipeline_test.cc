#include "worker_runtime/data/prepare/pipeline.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/data/prepare/testing/letter_tokenizer.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

PipelineOptions Options(int readers, int encoders, size_t in_flight_bytes) {
  static const auto* const tokenizer = new LetterTokenizer();
  return {.readers = readers,
          .encoders = encoders,
          .in_flight_bytes = in_flight_bytes,
          .field = "text",
          .rules = {.max_document_bytes = 100'000, .chunk_bytes = 500},
          .new_encoder = [] {
            return std::make_unique<RecordEncoder>(
                RecordEncoder::Options{.encoder = std::make_unique<TextEncoder>(*tokenizer),
                                       .frame = {.end = tokenizer->end_of_document()},
                                       .field = "text",
                                       .max_document_bytes = 100'000});
          }};
}

// All documents' letters, "|" for their ends, "{why}" for a broken line.
absl::StatusOr<std::string> Run(const std::vector<SourceFile>& sources,
                                const PipelineOptions& options, const InputPosition& start = {}) {
  std::string text;
  const absl::Status status = RunPipeline(sources, start, options, [&](EncodedChunk chunk) {
    text += LetterTokenizer().Decode(chunk.ids, true);
    for (const EncodedRecord& record : chunk.records) {
      if (!record.why_bad.empty()) absl::StrAppend(&text, "{", record.line, "}");
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(text, "; ", status.message()));
  return text;
}

std::vector<SourceFile> ManyFiles(const TempDir& dir, std::string* expected) {
  std::vector<SourceFile> sources;
  for (int file = 0; file < 12; ++file) {
    std::string content;
    for (int line = 0; line < file * 17; ++line) {
      const std::string word(line % 97, 'a' + (file + line) % 26);
      absl::StrAppend(&content, "{\"text\": \"x", word, "\"}\n");
      absl::StrAppend(expected, "x", word, "|");
    }
    content += "\n";
    sources.push_back(
        PutSource(dir.File(absl::StrCat(file, ".jsonl")), file % 3 == 0 ? Gzip(content) : content));
  }
  return sources;
}

TEST_CASE("the order is the input's, whatever the threads and the room are") {
  TempDir dir;
  std::string expected;
  const std::vector<SourceFile> sources = ManyFiles(dir, &expected);
  for (const int readers : {1, 3}) {
    for (const int encoders : {1, 4}) {
      for (const size_t room : {0, 1000, 1 << 20}) {
        CHECK(*Run(sources, Options(readers, encoders, room)) == expected);
      }
    }
  }
}

TEST_CASE("from the end of each chunk the rest follows") {
  TempDir dir;
  std::string expected;
  const std::vector<SourceFile> sources = ManyFiles(dir, &expected);
  std::vector<std::pair<InputPosition, size_t>> ends = {{{}, 0}};
  REQUIRE_OK(RunPipeline(sources, {}, Options(1, 2, 1000), [&](EncodedChunk chunk) {
    ends.emplace_back(chunk.end, ends.back().second + chunk.ids.size());
    return absl::OkStatus();
  }));
  REQUIRE(ends.size() > 20);
  for (const auto& [end, done] : ends) {
    CHECK(*Run(sources, Options(2, 2, 1000), end) == expected.substr(done));
  }
}

TEST_CASE("the first error in the input's order is told, behind all that stands before it") {
  TempDir dir;
  const std::vector<SourceFile> sources = {
      PutSource(dir.File("a.jsonl"), "{\"text\": \"a\"}\n{\n"),
      PutSource(dir.File("b.jsonl"), Gzip("{\"text\": \"b\"}\n").substr(0, 20)),
      PutSource(dir.File("c.txt"), "PAR1")};
  for (const int readers : {1, 3}) {
    CHECK_STATUS(Run(sources, Options(readers, 2, 1000)), absl::StatusCode::kDataLoss,
                 "a|{2}; data: " + dir.File("b.jsonl"));
  }
}

TEST_CASE("errors of the taker, of an encoder and of the threads end all") {
  TempDir dir;
  std::string expected;
  const std::vector<SourceFile> sources = ManyFiles(dir, &expected);
  CHECK_STATUS(RunPipeline(sources, {}, Options(2, 2, 1000),
                           [](EncodedChunk) { return absl::DataLossError("taker"); }),
               absl::StatusCode::kDataLoss, "taker");
  PipelineOptions options = Options(2, 2, 1000);
  options.new_encoder = [] { return absl::NotFoundError("no template"); };
  CHECK_STATUS(Run(sources, options), absl::StatusCode::kNotFound, "no template");
  ScopedThreadFault fault("prepare-encode");
  CHECK_STATUS(Run(sources, Options(1, 1, 1000)), absl::StatusCode::kResourceExhausted,
               "prepare-encode");
}

class HalfCounted : public DocumentEncoder {
 public:
  absl::Status Encode(absl::string_view record, EncodedDocument* document) override {
    document->Clear();
    for (const char letter : record) document->ids.push_back(letter);
    if (record != "all") document->counted.assign({0, 1, 0});
    return absl::OkStatus();
  }
};

TEST_CASE("the first text whose letters a tokenizer loses gets a warning") {
  Chunk chunk = {.text =
                     "caf\xC3\xA9"
                     "caf\xE9"
                     "\xE9t\xE9",
                 .records = {{.size = 5}, {.begin = 5, .size = 4}, {.begin = 9, .size = 3}}};
  EncodedChunk encoded;
  RecordEncoder losing({.encoder = std::make_unique<TextEncoder>(LetterTokenizer(true, true))});
  REQUIRE_OK(losing.Encode(chunk, &encoded));
  REQUIRE(encoded.warnings.size() == 1);
  CHECK_THAT(encoded.warnings[0], Catch::Contains("a text that is not UTF-8"));
  REQUIRE_OK(losing.Encode(chunk, &encoded));
  CHECK(encoded.warnings.empty());
  RecordEncoder keeping({.encoder = std::make_unique<TextEncoder>(LetterTokenizer())});
  REQUIRE_OK(keeping.Encode(chunk, &encoded));
  CHECK(encoded.warnings.empty());
  chunk.records.resize(1);
  RecordEncoder of_utf8({.encoder = std::make_unique<TextEncoder>(LetterTokenizer(true, true))});
  REQUIRE_OK(of_utf8.Encode(chunk, &encoded));
  CHECK(encoded.warnings.empty());
}

TEST_CASE("what stands around a document, and which ids count") {
  RecordEncoder plain({.encoder = std::make_unique<TextEncoder>(LetterTokenizer()),
                       .frame = {.prefix = {257}, .suffix = {258}, .end = 256},
                       .wants_hash = true});
  Chunk chunk = {.text = "ab",
                 .records = {{.size = 2},
                             {},
                             {.size = 1, .is_last = false},
                             {.begin = 1, .size = 1, .is_first = false},
                             {.size = 2}}};
  EncodedChunk encoded;
  REQUIRE_OK(plain.Encode(chunk, &encoded));
  CHECK(LetterTokenizer().Decode(encoded.ids, true) == "<ab>|<ab>|<ab>|");
  CHECK(encoded.counted.empty());
  CHECK(encoded.records[1].is_empty);
  CHECK(encoded.records[2].ids_end == 7);
  CHECK(encoded.records[0].text_hash == encoded.records[4].text_hash);
  CHECK(encoded.records[0].text_hash != encoded.records[2].text_hash);

  RecordEncoder counted({.encoder = std::make_unique<HalfCounted>(), .frame = {.end = 'd'}});
  chunk = {.text =
               "all"
               "abc"
               "abd",
           .records = {{.size = 3}, {.begin = 3, .size = 3}, {.begin = 6, .size = 3}, {.size = 3}}};
  REQUIRE_OK(counted.Encode(chunk, &encoded));
  CHECK(LetterTokenizer().Decode(encoded.ids, true) == "alldabcdabdalld");
  CHECK(encoded.counted == std::vector<uint8_t>{1, 1, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 1});
}

}  // namespace
}  // namespace convene::worker
