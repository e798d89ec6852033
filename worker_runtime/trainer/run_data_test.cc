#include "worker_runtime/trainer/run_data.h"

#include <optional>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/testing/token_files.h"
#include "worker_runtime/options/load_options.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"
#include "worker_runtime/trainer/run_tokenizer.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr int kSequenceLength = 8;

TrainOptions Options(const TempDir& directory, std::vector<std::string> arguments) {
  arguments.push_back("--token-cache-dir=" + directory.File("cache"));
  arguments.push_back("--sequence-length=8");
  const auto options =
      LoadOptions(arguments, [](const std::string&) { return std::optional<std::string>(); });
  REQUIRE_OK(options);
  return **options;
}

// As RunTraining does it.
absl::StatusOr<Dataset> OpenFor(TrainOptions& options) {
  auto tokenizer = LoadRunTokenizer(&options);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<RunData> data =
      OpenRunData(options, **tokenizer, Contract(), [](const std::string&) {});
  if (!data.ok()) return data.status();
  return std::move(data->training);
}

std::vector<int32_t> Inputs(const Dataset& dataset, int64_t position) {
  std::vector<int32_t> inputs(kSequenceLength), targets(kSequenceLength);
  REQUIRE_OK(dataset.Fill(dataset.TrainingPlaces(1, {position}), inputs.data(), targets.data()));
  return inputs;
}

// A token file of one document after the other, each of `length` tokens, whose ids go up to
// vocabulary_size - 1.
std::string WriteTokens(const TempDir& directory, const std::string& name, int vocabulary_size,
                        int documents, const TokenizerIdentity& tokenizer = {}) {
  constexpr int kLength = 50;
  std::vector<testing::TestDocument> all(documents);
  for (int i = 0; i < documents * kLength; ++i) {
    const bool ends = i % kLength == kLength - 1 && tokenizer.end_of_document.has_value();
    all[i / kLength].ids.push_back(ends ? *tokenizer.end_of_document
                                        : vocabulary_size - 1 - i % 40);
  }
  const std::string path = directory.File(name);
  testing::WriteTokenFile(path, {.vocabulary_size = vocabulary_size, .tokenizer = tokenizer}, all);
  return path;
}

TEST_CASE("texts are bytes where no tokenizer is named") {
  const TempDir directory;
  const std::string text = directory.File("a.txt");
  REQUIRE_OK(WriteFileAtomic(text, std::string(200, 'x')));
  TrainOptions options = Options(directory, {"--data", text});
  const auto dataset = OpenFor(options);
  REQUIRE_OK(dataset);
  CHECK(options.model.vocabulary_size == 256);
  CHECK(options.eod_token == 0);
  CHECK(Inputs(*dataset, 0) == std::vector<int32_t>(kSequenceLength, 'x'));
}

TEST_CASE("sample prompts become tokens of the data's tokenizer") {
  const TempDir directory;
  const std::string text = directory.File("a.txt");
  REQUIRE_OK(WriteFileAtomic(text, std::string(200, 'x')));
  const auto with = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--sample-every=5", "--sample-prompt", "ab", "c"});
    return Options(directory, std::move(arguments));
  };
  TrainOptions options = with({"--data", text});
  REQUIRE_OK(LoadRunTokenizer(&options));
  CHECK(options.samples.ids == std::vector<std::vector<int32_t>>{{'a', 'b'}, {'c'}});
  const SampleRoom room = RoomOf(options.samples);
  CHECK(room.sequences == 2);
  CHECK(room.context == 2 + 64);
  CHECK(room.pass_tokens == 2);
  options.samples.every = 0;
  CHECK(RoomOf(options.samples).sequences == 0);
  // Ids of another tokenizer, which nobody names.
  options = with({"--data", WriteTokens(directory, "a.bin", 300, 3)});
  CHECK_STATUS(LoadRunTokenizer(&options), kInvalid,
               "sample_prompt needs the tokenizer of the data");
  options = with({"--data", text, "--model=gpt2-tiny", "--positions=65"});
  CHECK_STATUS(
      LoadRunTokenizer(&options), kInvalid,
      "sample_prompt \"ab\" has 2 tokens, and with sample_tokens 64 it is longer than the 65");
}

TEST_CASE("JSON lines give the text of their field, and broken ones are counted") {
  const TempDir directory;
  const std::string lines = directory.File("a.jsonl");
  std::string content;
  for (int i = 0; i < 20; ++i)
    content += R"({"meta":{"body":"yyyyyyyyyyyyyyyyyyyy"}})"
               "\n";
  REQUIRE_OK(WriteFileAtomic(lines, content + "{broken\n"));
  TrainOptions options = Options(directory, {"--data", lines, "--text-field", "meta.body"});
  CHECK_STATUS(OpenFor(options), kInvalid, "a.jsonl");
  options.max_bad_lines = 1;
  const auto dataset = OpenFor(options);
  REQUIRE_OK(dataset);
  CHECK(Inputs(*dataset, 0)[0] == 'y');
  options.text_field = "text";
  CHECK_FALSE(OpenFor(options).ok());
}

TEST_CASE("token files say what their ids are, where no tokenizer is named") {
  const TempDir directory;
  const TokenizerIdentity made_by = {
      .kind = "BPE", .path = "gpt2/", .fingerprint = 5, .end_of_document = 7};
  const std::string path = WriteTokens(directory, "a.bin", 1000, 4, made_by);
  TrainOptions options = Options(directory, {"--data", path});
  REQUIRE_OK(OpenFor(options));
  CHECK(options.model.vocabulary_size == 1024);
  CHECK(options.eod_token == 7);
  options = Options(directory, {"--data", path, "--model", "llama-tiny"});
  CHECK_STATUS(OpenFor(options), kInvalid,
               path +
                   " has ids up to 999, but the vocabulary_size of llama-tiny is 256: give "
                   "--vocabulary-size 1024");
}

TEST_CASE("token files of another tokenizer than the named one are refused, with both") {
  const TempDir directory;
  const std::string path =
      WriteTokens(directory, "a.bin", 200, 4, {.kind = "BPE", .path = "gpt2/", .fingerprint = 5});
  TrainOptions options = Options(directory, {"--data", path});
  auto tokenizer = LoadRunTokenizer(&options);
  REQUIRE_OK(tokenizer);
  REQUIRE_OK(OpenRunData(options, **tokenizer, Contract(), [](const std::string&) {}));
  options.tokenizer_path = "own/";
  CHECK_STATUS(
      OpenRunData(options, **tokenizer, Contract(), [](const std::string&) {}),
      absl::StatusCode::kFailedPrecondition,
      "made by the tokenizer gpt2/ (BPE), which is not the same as --tokenizer own/ (byte)");
}

TEST_CASE("a compact vocabulary is the file's own, which no tokenizer's name stands for") {
  const TempDir directory;
  TokenizerIdentity made_by = {.kind = "BPE", .path = "gpt2/", .compact = CompactVocabulary()};
  made_by.compact->whole_size = 50257;
  for (int32_t id = 0; id < 300; ++id) made_by.compact->original_ids.push_back(3 * id);
  made_by.fingerprint = CompactFingerprint(0, made_by.compact->original_ids);
  const std::string path = WriteTokens(directory, "a.bin", 300, 4, made_by);
  TrainOptions options = Options(directory, {"--data", path});
  const auto tokenizer = LoadRunTokenizer(&options);
  REQUIRE_OK(tokenizer);
  CHECK(options.model.vocabulary_size == 384);
  REQUIRE_OK(OpenRunData(options, **tokenizer, Contract(), [](const std::string&) {}));
  options.tokenizer_path = "gpt2/";
  CHECK_STATUS(OpenRunData(options, **tokenizer, Contract(), [](const std::string&) {}),
               absl::StatusCode::kFailedPrecondition, "leave --tokenizer out");
}

TEST_CASE("validation sets are held out whole, by their names, with the run's tokenizer") {
  const TempDir directory;
  const TokenizerIdentity gpt2 = {.kind = "BPE", .path = "gpt2/", .fingerprint = 5};
  const TokenizerIdentity llama = {.kind = "BPE", .path = "llama/", .fingerprint = 6};
  const std::string data = WriteTokens(directory, "a.bin", 200, 4, gpt2);
  const std::string code = WriteTokens(directory, "code.bin", 200, 2, gpt2);
  const std::string web = WriteTokens(directory, "web.bin", 200, 1, gpt2);
  const auto open = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> arguments = {"--data", data, "--validation-data"};
    arguments.insert(arguments.end(), sets.begin(), sets.end());
    TrainOptions options = Options(directory, arguments);
    const auto tokenizer = LoadRunTokenizer(&options);
    REQUIRE_OK(tokenizer);
    return OpenRunData(options, **tokenizer, Contract(), [](const std::string&) {});
  };
  const auto opened = open({"code=" + code, "all=" + web, "all=" + code});
  REQUIRE_OK(opened);
  CHECK(opened->training.token_count() == 200);
  CHECK(opened->training.validation_samples() > 0);
  REQUIRE(opened->validation_sets.size() == 2);
  CHECK(opened->validation_sets[0].name == "code");
  CHECK(opened->validation_sets[0].dataset.validation_samples() == 12);
  CHECK(opened->validation_sets[0].dataset.training_samples() == 0);
  CHECK(opened->validation_sets[1].name == "all");
  CHECK(opened->validation_sets[1].dataset.token_count() == 150);
  const auto other = open({"x=" + WriteTokens(directory, "other.bin", 200, 2, llama)}).status();
  CHECK_STATUS(other, absl::StatusCode::kFailedPrecondition, "validation_data x: data: ");
  CHECK_STATUS(other, absl::StatusCode::kFailedPrecondition, "gpt2/");
  CHECK_STATUS(other, absl::StatusCode::kFailedPrecondition, "llama/");
  const std::string text = directory.File("b.txt");
  REQUIRE_OK(WriteFileAtomic(text, std::string(200, 'x')));
  CHECK_STATUS(open({"text=" + text}).status(), absl::StatusCode::kFailedPrecondition,
               "their ids mean different texts");
  CHECK_STATUS(open({"code=" + code + ":0.5," + web + ":0.5"}).status(), kInvalid,
               "leave the shares out");
  CHECK_STATUS(open({"code=" + directory.File("none.bin")}).status(), absl::StatusCode::kNotFound,
               "validation_data code: ");
}

TEST_CASE("several files are mixed by their weights, or else by their size") {
  const TempDir directory;
  const std::string many = WriteTokens(directory, "many.bin", 100, 40);
  const std::string few = WriteTokens(directory, "few.bin", 200, 10);
  const auto share_of_few = [&](const std::vector<std::string>& data) {
    std::vector<std::string> arguments = {"--data"};
    arguments.insert(arguments.end(), data.begin(), data.end());
    TrainOptions options = Options(directory, arguments);
    const auto dataset = OpenFor(options);
    REQUIRE_OK(dataset);
    int of_few = 0;
    constexpr int kSamples = 200;
    for (int64_t position = 0; position < kSamples; ++position) {
      if (Inputs(*dataset, position)[0] >= 100) ++of_few;
    }
    return static_cast<double>(of_few) / kSamples;
  };
  CHECK(share_of_few({many, few}) == Approx(0.2).margin(0.05));
  CHECK(share_of_few({many + ":0.5," + few + ":0.5"}) == Approx(0.5).margin(0.05));
  TrainOptions options = Options(directory, {"--data", many + ":0.5", few});
  CHECK_STATUS(OpenFor(options), kInvalid, "1 of 2 sources have a share");
}

TEST_CASE("files that are too short for a sample are named, with what they hold") {
  const TempDir directory;
  const std::string whole = WriteTokens(directory, "whole.bin", 100, 40);
  const std::string none = WriteTokens(directory, "none.bin", 100, 0);
  testing::WriteTokenFile(directory.File("few.bin"), 100, {1, 2, 3});
  const auto text = [&](const std::vector<std::string>& arguments) {
    TrainOptions options = Options(directory, arguments);
    const auto dataset = OpenFor(options);
    REQUIRE_OK(dataset);
    return LeftOutText(*dataset);
  };
  const std::string few = directory.File("few.bin");
  CHECK(text({"--validation-fraction=0", "--data", whole, few}) ==
        "1 file with 3 tokens, too few for samples of 8: " + few + " (3 tokens)");
  CHECK(text({"--data", none, whole, few}) ==
        "2 files with 3 tokens, too few for samples of 8 and a held-out part: " + none +
            " (0 tokens), " + few + " (3 tokens)");
  TrainOptions options = Options(directory, {"--data", whole + ":0.5," + few + ":0.5"});
  CHECK_STATUS(OpenFor(options), kInvalid, few + ": data has 3 tokens");
}

TEST_CASE("packed documents need a token that ends one, within the data") {
  const TempDir directory;
  const TokenizerIdentity made_by = {.kind = "BPE", .path = "gpt2/", .end_of_document = 7};
  const std::string two = WriteTokens(directory, "two.bin", 100, 2, made_by);
  const std::string one = WriteTokens(directory, "one.bin", 100, 1, made_by);
  const auto opens = [&](const std::vector<std::string>& arguments) {
    TrainOptions options = Options(directory, arguments);
    return OpenFor(options).status();
  };
  CHECK_OK(opens({"--packed-documents", "--data", two}));
  CHECK_STATUS(opens({"--packed-documents", "--data", one}), kInvalid,
               "token 7, which ends a document, occurs nowhere within the data");
  CHECK_STATUS(opens({"--packed-documents", "--data", two, "--eod-token", "3"}), kInvalid,
               "token 3, which ends a document, occurs nowhere");
  CHECK_OK(opens({"--packed-documents", "--data", one, "--eod-token", "99"}));
}

TEST_CASE("messages are packed whole, and their answers count") {
  const TempDir directory;
  const std::string lines = directory.File("a.jsonl");
  std::string content;
  for (int i = 0; i < 40; ++i) {
    content += R"({"messages": [{"role": "user", "content": "qq"}, )"
               R"({"role": "assistant", "content": "aa"}]})"
               "\n";
  }
  // Longer than a sample.
  content += R"({"messages": [{"role": "user", "content": "qq"}, )"
             R"({"role": "assistant", "content": "aaaaaaaaaaaaaaaa"}]})"
             "\n";
  REQUIRE_OK(WriteFileAtomic(lines, content));
  const std::string chat_template = directory.File("chat.jinja");
  REQUIRE_OK(WriteFileAtomic(
      chat_template,
      "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"));
  const auto open = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--data", lines, "--chat-template", chat_template});
    TrainOptions options = Options(directory, more);
    const auto dataset = OpenFor(options);
    REQUIRE_OK(dataset);
    return *dataset;
  };
  const Dataset dataset = open({});
  REQUIRE(dataset.packing_counts().has_value());
  CHECK(dataset.packing_counts()->documents == 41);
  CHECK(dataset.packing_counts()->cut == 1);
  CHECK(dataset.packing_counts()->dropped == 0);
  std::vector<int32_t> inputs(kSequenceLength), targets(kSequenceLength);
  REQUIRE_OK(dataset.Fill(dataset.TrainingPlaces(1, {0}), inputs.data(), targets.data()));
  int64_t counted = 0;
  for (int i = 0; i < kSequenceLength; ++i) {
    if (targets[i] < 0) continue;
    ++counted;
    CHECK(targets[i] == 'a');
  }
  CHECK(counted > 0);
  CHECK(dataset.CountedTargets(dataset.TrainingPlaces(1, {0})) == counted);
  CHECK(open({"--too-long", "drop"}).packing_counts()->dropped == 1);
  const Dataset of_all = open({"--train-on", "all"});
  CHECK(of_all.CountedTargets(of_all.TrainingPlaces(1, {0})) > counted);
  CHECK_FALSE(open({"--packed-documents=false"}).packing_counts().has_value());
}

TEST_CASE("a checkpoint keeps both templates of a folder whose tokenizer's file is named") {
  const TempDir directory;
  REQUIRE_OK(WriteFileAtomic(directory.File("tokenizer.json"),
                             R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})"));
  REQUIRE_OK(WriteFileAtomic(directory.File("tokenizer_config.json"),
                             R"({"chat_template": [{"name": "default", "template": "{{ 1 }}"},
                                                   {"name": "tool_use", "template": "{{ 2 }}"}]})"));
  TrainOptions options;
  options.tokenizer_path = directory.File("tokenizer.json");
  options.chat_template = directory.path();
  const auto tokenizer = LoadTokenizer(options.tokenizer_path);
  REQUIRE_OK(tokenizer.status());
  const TokenizerIdentity made_by = {.path = options.tokenizer_path,
                                     .fingerprint = (*tokenizer)->fingerprint()};
  const auto files = FilesOfTokenizer(options, **tokenizer, made_by);
  REQUIRE_OK(files.status());
  std::vector<std::string> names;
  for (const NamedFile& file : *files) names.push_back(file.name);
  CHECK(names == std::vector<std::string>{"additional_chat_templates/tool_use.jinja",
                                          "chat_template.jinja", "tokenizer.json",
                                          "tokenizer_config.json"});
  CHECK(files->at(0).content == "{{ 2 }}");
  CHECK(files->at(1).content == "{{ 1 }}");
}

TEST_CASE("the fate of packed documents is said, as far as there is something to say") {
  CHECK(PackingText({.documents = 1200, .rows = 310, .tokens = 39000}) ==
        "1,200 documents in 310 samples, 39,000 tokens");
  CHECK(PackingText({.documents = 9,
                     .rows = 2,
                     .tokens = 50,
                     .cut = 3,
                     .dropped = 1,
                     .too_short = 2,
                     .idle = 4}) ==
        "9 documents in 2 samples, 50 tokens, 3 cut to a sample's length, 1 too long and left out, "
        "2 too short and left out, 4 of pairs that teach nothing, and left out");
}

TEST_CASE("data that are not there are named") {
  const TempDir directory;
  TrainOptions options = Options(directory, {"--data", directory.File("none.txt")});
  CHECK_STATUS(OpenFor(options), absl::StatusCode::kNotFound, "none.txt");
  options = Options(directory, {"--data", "a.txt", "--tokenizer", directory.File("none/")});
  CHECK_STATUS(OpenFor(options), absl::StatusCode::kNotFound, "none/");
}

TEST_CASE("token files that a pattern names say their ids as those that are named do") {
  const TempDir directory;
  const TokenizerIdentity tokenizer = {.kind = "other", .fingerprint = 1, .end_of_document = 299};
  WriteTokens(directory, "one.tokens", 300, 3, tokenizer);
  WriteTokens(directory, "two.tokens", 300, 3, tokenizer);
  TrainOptions options =
      Options(directory, {"--data=" + directory.File("*.tokens"), "--packed-documents"});
  REQUIRE_OK(OpenFor(options));
  CHECK(options.eod_token == 299);
  CHECK(options.model.vocabulary_size == 384);
}

}  // namespace
}  // namespace convene::worker
