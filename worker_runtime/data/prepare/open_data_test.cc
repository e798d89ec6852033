#include "worker_runtime/data/prepare/open_data.h"

#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/testing/letter_tokenizer.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"
#include "worker_runtime/data/store/convert.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

PrepareOptions Options(const Tokenizer* tokenizer) {
  return {.tokenizer = tokenizer, .tokenizer_path = "letters", .threads = 1};
}

std::string TextOf(const TokenSource& source) {
  std::vector<int32_t> tokens(source.token_count());
  source.Read(0, source.token_count(), tokens.data());
  return LetterTokenizer().Decode(tokens, true);
}

absl::StatusOr<std::vector<OpenedData>> Open(const TempDir& dir,
                                             const std::vector<std::string>& texts,
                                             const Tokenizer* tokenizer) {
  const auto paths = ParseDataPaths(texts);
  if (!paths.ok()) return paths.status();
  return OpenData(*paths, Options(tokenizer), {.directory = dir.File("cache")}, nullptr);
}

void MakeTokens(const TempDir& dir, const std::string& name, const Tokenizer& tokenizer) {
  PutSource(dir.File(name + ".src"), name);
  PrepareOptions options = Options(&tokenizer);
  options.input.patterns = {dir.File(name + ".src")};
  options.append_end_of_document = tokenizer.end_of_document().has_value();
  REQUIRE_OK(PrepareOutput(options, dir.File(name), nullptr));
}

TEST_CASE("paths have their weights, and a file's name may look like one with a weight") {
  TempDir dir;
  PutSource(dir.File("a:0.5"), "text");
  const auto paths = ParseDataPaths({dir.File("a:0.5"), "b,c"});
  REQUIRE_OK(paths);
  REQUIRE(paths->size() == 3);
  CHECK((*paths)[0].path == dir.File("a:0.5"));
  CHECK_FALSE((*paths)[0].weight.has_value());
  CHECK((*ParseDataPaths({"a:0.25", "b:3"}))[1].weight == 3);
  CHECK_STATUS(ParseDataPaths({"a:0.25", "b"}), absl::StatusCode::kInvalidArgument,
               "1 of 2 sources have a share");
  CHECK_STATUS(ParseDataPaths({"a,b:0.5,c"}), absl::StatusCode::kInvalidArgument,
               "1 of 3 sources have a share");
  CHECK_STATUS(ParseDataPaths({}), absl::StatusCode::kInvalidArgument, "no file");
}

TEST_CASE("without weights texts are one source, token files one each") {
  TempDir dir;
  const LetterTokenizer letters;
  MakeTokens(dir, "t.bin", letters);
  PutSource(dir.File("a.txt"), "a");
  PutSource(dir.File("b.jsonl"), "{\"text\": \"b\"}\n");
  const auto opened =
      Open(dir, {dir.File("b.jsonl"), dir.File("*.bin"), dir.File("a.txt")}, &letters);
  REQUIRE_OK(opened);
  REQUIRE(opened->size() == 2);
  CHECK(TextOf(*(*opened)[0].tokens) == "b|a|");
  CHECK((*opened)[0].patterns == std::vector<std::string>{dir.File("b.jsonl"), dir.File("a.txt")});
  CHECK(TextOf(*(*opened)[1].tokens) == "t.bin|");
  CHECK((*opened)[1].tokens->path() == dir.File("t.bin"));
}

TEST_CASE("tokens that have lost what tells their format are not read as a text") {
  TempDir dir;
  const LetterTokenizer letters;
  // Megatron's .bin without its .idx; a part of ours that was never finished.
  PutSource(dir.File("lost.bin"), std::string("a\0b\0c\0", 6));
  PutSource(dir.File("part.bin"), std::string(2000, '\0'));
  for (const std::string name : {"lost.bin", "part.bin"}) {
    CHECK_STATUS(Open(dir, {dir.File(name)}, &letters), absl::StatusCode::kInvalidArgument,
                 dir.File(name) + " is no text");
  }
  PutSource(dir.File("packed.gz"), Gzip("text"));
  REQUIRE_OK(Open(dir, {dir.File("packed.gz")}, &letters));
}

TEST_CASE("a token file counts once, however many of its names are given") {
  TempDir dir;
  const LetterTokenizer letters;
  MakeTokens(dir, "t.bin", letters);
  const auto source = OpenTokenSource(dir.File("t.bin"));
  REQUIRE_OK(source);
  REQUIRE_OK(ConvertTokens(**source, dir.File("m"), {.format = TokenFormat::kMegatron}));
  const auto count = [&](const std::vector<std::string>& texts) {
    const auto opened = Open(dir, texts, nullptr);
    REQUIRE_OK(opened);
    return opened->size();
  };
  CHECK(count({dir.File("m.*")}) == 1);
  CHECK(count({dir.File("m.bin"), dir.File("m"), dir.File("m.idx")}) == 1);
  CHECK(count({dir.File("t.bin"), dir.File("./t*.bin")}) == 1);
  CHECK(count({dir.File("{m,t}.bin"), dir.File("t.bin")}) == 2);
  CHECK(count({dir.File("m.{bin,idx}") + ":1"}) == 1);
  CHECK_STATUS(Open(dir, {dir.File("t.bin") + ":1", dir.File("./t.bin") + ":2"}, nullptr),
               absl::StatusCode::kInvalidArgument, "is given twice");
}

TEST_CASE("with weights each path is a source") {
  TempDir dir;
  const LetterTokenizer letters;
  MakeTokens(dir, "t.bin", letters);
  PutSource(dir.File("a.txt"), "a");
  PutSource(dir.File("b.txt"), "b");
  const auto opened =
      Open(dir, {dir.File("a.txt") + ":1," + dir.File("t.bin") + ":2," + dir.File("b.txt") + ":3"},
           &letters);
  REQUIRE_OK(opened);
  REQUIRE(opened->size() == 3);
  CHECK(TextOf(*(*opened)[0].tokens) == "a|");
  CHECK((*opened)[1].weight == 2);
  CHECK(TextOf(*(*opened)[2].tokens) == "b|");
}

TEST_CASE("what does not fit together is told") {
  TempDir dir;
  const LetterTokenizer letters, others(false);
  MakeTokens(dir, "t.bin", letters);
  MakeTokens(dir, "u.bin", others);
  PutSource(dir.File("a.txt"), "a");
  CHECK_STATUS(Open(dir, {dir.File("?.bin")}, nullptr), absl::StatusCode::kFailedPrecondition,
               "fingerprint 47), and " + dir.File("u.bin"));
  CHECK_STATUS(Open(dir, {dir.File("u.bin"), dir.File("a.txt")}, &letters),
               absl::StatusCode::kFailedPrecondition, "Prepare both with one tokenizer");
  CHECK_STATUS(Open(dir, {dir.File("a.txt")}, nullptr), absl::StatusCode::kFailedPrecondition,
               "no tokenizer is given");
  CHECK_STATUS(Open(dir, {dir.File("*.{bin,txt}")}, &letters), absl::StatusCode::kInvalidArgument,
               "name them apart");
  CHECK_STATUS(Open(dir, {dir.File("?.bin") + ":1"}, &letters), absl::StatusCode::kInvalidArgument,
               "stands for 2 token files");
  CHECK_STATUS(Open(dir, {dir.File("none")}, &letters), absl::StatusCode::kNotFound, "none");
  CHECK_OK(Open(dir, {dir.File("t.bin")}, nullptr));
}

}  // namespace
}  // namespace convene::worker
