#include "worker_runtime/options/config_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<TrainConfig> Parse(const std::string& yaml) {
  return ParseConfig(yaml, "train.yaml");
}

TEST_CASE("a file with every kind of value is read whole") {
  const auto config = Parse(
      "# a comment\n"
      "model: llama-15m\n"
      "model_shape:\n"
      "  layers: 4\n"
      "  rope_theta: 5e5\n"
      "  tied_embeddings: true\n"
      "data: [a.txt, 'b/*.txt']\n"
      "steps: 500\n"
      "learning_rate: 3.0e-4\n");
  REQUIRE_OK(config);
  CHECK(config->model() == "llama-15m");
  CHECK(config->model_shape().layers() == 4);
  CHECK(config->model_shape().rope_theta() == 5e5);
  CHECK(config->model_shape().tied_embeddings());
  REQUIRE(config->data_size() == 2);
  CHECK(config->data(1) == "b/*.txt");
  CHECK(config->steps() == 500);
  CHECK(config->learning_rate() == 3e-4);
  CHECK_FALSE(config->has_seed());
}

TEST_CASE("data may be a single text") {
  const auto config = Parse("data: a.txt\n");
  REQUIRE_OK(config);
  REQUIRE(config->data_size() == 1);
  CHECK(config->data(0) == "a.txt");
}

TEST_CASE("an empty file says nothing") {
  for (const char* yaml : {"", "# only a comment\n", "---\n"}) {
    const auto config = Parse(yaml);
    REQUIRE_OK(config);
    CHECK(config->ByteSizeLong() == 0);
  }
}

TEST_CASE("an unknown key is named with its line and the closest one") {
  CHECK_STATUS(Parse("steps: 5\n\nlearning_rat: 1\n"), kInvalid,
               "train.yaml:3: unknown key \"learning_rat\"; did you mean \"learning_rate\"?");
  CHECK_STATUS(Parse("learning-rate: 1\n"), kInvalid, "did you mean \"learning_rate\"?");
  CHECK_STATUS(Parse("model_shape:\n  layer: 1\n"), kInvalid,
               "train.yaml:2: unknown key \"layer\"; did you mean \"layers\"?");
  CHECK_STATUS(Parse("quantum_entanglement: 1\n"), kInvalid, "`convene-train --help` lists");
}

TEST_CASE("a key at the wrong level is sent to the right one") {
  CHECK_STATUS(Parse("layers: 4\n"), kInvalid,
               "train.yaml:1: unknown key \"layers\" here; it belongs under model_shape:");
  CHECK_STATUS(Parse("model_shape:\n  steps: 4\n"), kInvalid,
               "train.yaml:2: unknown key \"steps\" here; it belongs at the top level");
}

TEST_CASE("a wrong type is named with its line") {
  CHECK_STATUS(Parse("seed: 1\nsteps: many\n"), kInvalid,
               "train.yaml:2: steps \"many\" must be a whole number");
  CHECK_STATUS(Parse("steps: [1, 2]\n"), kInvalid,
               "train.yaml:1: steps takes one value, not a list");
  CHECK_STATUS(Parse("data: {a: b}\n"), kInvalid, "train.yaml:1: data takes one value, not a map");
  CHECK_STATUS(Parse("steps:\n"), kInvalid, "train.yaml:1: steps has no value");
  CHECK_STATUS(Parse("data: [a, [b]]\n"), kInvalid, "data takes one value, not a list");
  CHECK_STATUS(Parse("model_shape: llama-15m\n"), kInvalid,
               "train.yaml:1: model_shape must be a map of keys");
  CHECK_STATUS(Parse("- steps\n"), kInvalid, "train.yaml:1: must be a map of keys");
}

TEST_CASE("a key that is given twice names both lines") {
  CHECK_STATUS(Parse("steps: 1\nseed: 2\nsteps: 3\n"), kInvalid,
               "train.yaml:3: steps is already set in line 1");
}

TEST_CASE("broken YAML is named with its line") {
  CHECK_STATUS(Parse("steps: 1\n seed: 2\n"), kInvalid, "train.yaml:2: this is not YAML: ");
  CHECK_STATUS(Parse("steps: 1\ndata: *.txt\n"), kInvalid, "begins with * needs quotes");
  CHECK_STATUS(Parse("steps: 1\n---\nsteps: 2\n"), kInvalid, "train.yaml:3: a second document");
  CHECK_STATUS(Parse("? [a]\n: 1\n"), kInvalid, "train.yaml:1: a key must be one word");
  CHECK_STATUS(Parse("steps: 1\ndata: [a, \"b\"]\ncheckpoint_dir: \"ck\n"), kInvalid,
               "train.yaml:3: the quote that begins here has no end");
  CHECK_STATUS(Parse("checkpoint_dir: 'it''s\n"), kInvalid, "train.yaml:1: the quote");
  CHECK_OK(Parse("checkpoint_dir: 'it''s'\nmetrics_file: \"a\\\"b\"\n"));
  CHECK_STATUS(Parse("data: &x [*x]\n"), kInvalid, "train.yaml:1");
  CHECK_STATUS(Parse("data: " + std::string(100'000, '[')), kInvalid, "this is not YAML");
}

TEST_CASE("a file is read from the disk, and a missing one is named") {
  testing::TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("train.yaml"), "steps: 7\nstep: 1\n"));
  CHECK_STATUS(ReadConfigFile(dir.File("train.yaml")), kInvalid,
               dir.File("train.yaml") + ":2: unknown key \"step\"");
  CHECK_STATUS(ReadConfigFile(dir.File("other.yaml")), absl::StatusCode::kNotFound,
               "--config: " + dir.File("other.yaml"));
}

TEST_CASE("what is no file, or too large for a configuration, is refused without being read") {
  testing::TempDir dir;
  // Opening it would block.
  REQUIRE(mkfifo(dir.File("fifo").c_str(), 0600) == 0);
  CHECK_STATUS(ReadConfigFile(dir.File("fifo")), kInvalid, "is not a regular file");
  CHECK_STATUS(ReadConfigFile(dir.path()), kInvalid, "is a directory");
  REQUIRE_OK(WriteFileAtomic(dir.File("large"), ""));
  REQUIRE(truncate(dir.File("large").c_str(), int64_t{1} << 30) == 0);
  CHECK_STATUS(ReadConfigFile(dir.File("large")), kInvalid,
               "has 1073741824 bytes, more than the 1048576");
}

}  // namespace
}  // namespace convene::worker
