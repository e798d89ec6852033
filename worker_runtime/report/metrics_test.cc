#include "worker_runtime/report/metrics.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/report/testing/read_metrics.h"

namespace convene::worker {
namespace {

using testing::TempDir;

StepMetrics Step(int64_t step) {
  return {.step = step,
          .loss = 2.5,
          .grad_norm = 0.5,
          .learning_rate = 1e-5,
          .tokens = step * 4096,
          .tokens_per_second = 41200.5,
          .step_seconds = 0.1,
          .epoch = 1,
          .world_size = 8,
          .layout = "dp2 x tp2 x pp2"};
}

// A file as a run leaves it that was killed after `last` steps.
std::string WriteRun(const TempDir& dir, int64_t last) {
  std::string path = dir.File("metrics.jsonl");
  auto file = MetricsFile::Open(path, 0);
  REQUIRE_OK(file);
  for (int64_t step = 1; step <= last; ++step) REQUIRE_OK(file->Append(Step(step)));
  return path;
}

std::vector<int64_t> Steps(const std::string& path) {
  const auto history = ReadMetrics(path);
  REQUIRE_OK(history);
  std::vector<int64_t> steps;
  for (const StepMetrics& metrics : history->steps) steps.push_back(metrics.step);
  return steps;
}

TEST_CASE("a line has exactly the agreed keys") {
  CHECK(MetricsLine(Step(3)) ==
        "{\"step\":3,\"loss\":2.5,\"grad_norm\":0.5,\"learning_rate\":1e-05,\"tokens\":12288,"
        "\"tokens_per_second\":41200.5,\"step_seconds\":0.1,\"epoch\":1,\"world_size\":8,"
        "\"layout\":\"dp2 x tp2 x pp2\"}\n");
  CHECK(MetricsLine(ValidationMetrics{.step = 50, .validation_loss = 2.25}) ==
        "{\"step\":50,\"validation_loss\":2.25}\n");
  CHECK(MetricsLine(CheckpointMetrics{50, 0.25, 0.5}) ==
        "{\"step\":50,\"checkpoint_held_seconds\":0.25,\"checkpoint_seconds\":0.5}\n");
}

TEST_CASE("a sample's texts come back as they were written") {
  const SampleMetrics sample = {.step = 50,
                                .sample_prompt = "a, \"b\"}\n\\n\x01",
                                .sample_text = "é",
                                .sample_tokens = 2,
                                .sample_end = "length"};
  const std::string line = MetricsLine(sample);
  CHECK(line ==
        "{\"step\":50,\"sample_prompt\":\"a, \\\"b\\\"}\\n\\\\n\\u0001\","
        "\"sample_text\":\"é\",\"sample_tokens\":2,\"sample_end\":\"length\"}\n");
  const auto record = ParseMetricsLine(line.substr(0, line.size() - 1));
  REQUIRE_OK(record);
  CHECK(std::get<SampleMetrics>(*record) == sample);
  CHECK(JsonText("a\xff") == "\"a?\"");
  // A torn line, at each place of it.
  for (size_t length = 1; length + 1 < line.size(); ++length) {
    CHECK(!ParseMetricsLine(line.substr(0, length)).ok());
  }
  CHECK(
      !ParseMetricsLine(
           R"({"step":1,"sample_prompt":"\q","sample_text":"","sample_tokens":1,"sample_end":""})")
           .ok());
}

TEST_CASE("a share of counted targets and bits a byte stand in a line only where there are such") {
  StepMetrics half = Step(3);
  half.counted_share = 0.5;
  CHECK_THAT(MetricsLine(half),
             Catch::Contains("\"tokens\":12288,\"counted_share\":0.5,\"tokens_per_second\":"));
  const ValidationMetrics validation = {.step = 50, .validation_loss = 2.25, .bits_per_byte = 3.5};
  CHECK(MetricsLine(validation) ==
        "{\"step\":50,\"validation_loss\":2.25,\"bits_per_byte\":3.5}\n");
  const auto read_back = [](const MetricsRecord& record) {
    std::string line = MetricsLine(record);
    line.pop_back();
    const auto parsed = ParseMetricsLine(line);
    REQUIRE_OK(parsed);
    return *parsed == record;
  };
  CHECK(read_back(half));
  CHECK(read_back(Step(3)));
  CHECK(read_back(validation));
  CHECK(read_back(ValidationMetrics{.step = 50, .validation_loss = 2.25}));
  const ValidationMetrics named = {
      .step = 50, .validation_set = "code-1.x_y", .validation_loss = 2.25, .bits_per_byte = 3.5};
  CHECK(MetricsLine(named) ==
        "{\"step\":50,\"validation_set\":\"code-1.x_y\",\"validation_loss\":2.25,"
        "\"bits_per_byte\":3.5}\n");
  CHECK(read_back(named));
  CHECK(read_back(CheckpointMetrics{50, 0.25, 0.5}));
  StepMetrics pairs = Step(3);
  pairs.reward_accuracy = 0.75;
  pairs.reward_margin = -0.5;
  CHECK_THAT(MetricsLine(pairs),
             Catch::Contains("\"reward_accuracy\":0.75,\"reward_margin\":-0.5,"));
  CHECK(read_back(pairs));
  CHECK(read_back(ValidationMetrics{.step = 50, .reward_accuracy = 1, .reward_margin = 2}));
}

TEST_CASE("what a step used stands in its line where it is known, and reads back") {
  StepMetrics used = Step(3);
  used.mfu_full_attention = 0.4375;
  used.mfu_causal_attention = 0.375;
  used.data_seconds = 0.25;
  used.host_memory_peak_bytes = int64_t{5} << 30;
  std::string line = MetricsLine(used);
  CHECK_THAT(line, Catch::Contains("\"step_seconds\":0.1,\"mfu_full_attention\":0.4375,"
                                   "\"mfu_causal_attention\":0.375,\"data_seconds\":0.25,"
                                   "\"host_memory_peak_bytes\":5368709120,\"epoch\":1"));
  line.pop_back();
  const auto parsed = ParseMetricsLine(line);
  REQUIRE_OK(parsed);
  CHECK(std::get<StepMetrics>(*parsed) == used);
}

TEST_CASE("numbers read back as they were, to the last bit") {
  TempDir dir;
  StepMetrics metrics = Step(1);
  metrics.loss = std::nextafter(2.0, 3.0);
  metrics.grad_norm = std::numeric_limits<double>::denorm_min();
  metrics.learning_rate = 1.0 / 3;
  metrics.tokens = std::numeric_limits<int64_t>::max();
  metrics.step_seconds = std::numeric_limits<double>::max();
  auto file = MetricsFile::Open(dir.File("m"), 0);
  REQUIRE_OK(file);
  REQUIRE_OK(file->Append(metrics));
  REQUIRE_OK(file->Append(ValidationMetrics{.step = 1, .validation_loss = 0.1}));
  const auto history = ReadMetrics(dir.File("m"));
  REQUIRE_OK(history);
  CHECK(history->steps == std::vector<StepMetrics>{metrics});
  CHECK(history->validations ==
        std::vector<ValidationMetrics>{{.step = 1, .validation_loss = 0.1}});
}

TEST_CASE("a loss that is no number is null in the file") {
  StepMetrics metrics = Step(1);
  metrics.loss = INFINITY;
  const std::string line = MetricsLine(metrics);
  CHECK_THAT(line, Catch::Contains("\"loss\":null,"));
  const auto record = ParseMetricsLine(absl::string_view(line).substr(0, line.size() - 1));
  REQUIRE_OK(record);
  CHECK(std::isnan(std::get<StepMetrics>(*record).loss));
}

TEST_CASE("after a resume every step stands in the file once") {
  TempDir dir;
  const std::string path = WriteRun(dir, 5);
  auto file = MetricsFile::Open(path, 3);
  REQUIRE_OK(file);
  CHECK(Steps(path) == std::vector<int64_t>{1, 2, 3});
  REQUIRE_OK(file->Append(Step(4)));
  REQUIRE_OK(file->Append(Step(5)));
  REQUIRE_OK(file->Append(Step(6)));
  CHECK(Steps(path) == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a validation after the resumed step is dropped with the steps") {
  TempDir dir;
  const std::string path = WriteRun(dir, 2);
  REQUIRE_OK(
      MetricsFile::Open(path, 2)->Append(ValidationMetrics{.step = 2, .validation_loss = 3}));
  REQUIRE_OK(MetricsFile::Open(path, 2));
  CHECK(ReadMetrics(path)->validations.size() == 1);
  REQUIRE_OK(MetricsFile::Open(path, 1));
  CHECK(ReadMetrics(path)->validations.empty());
}

TEST_CASE("a fresh start begins an empty file, and makes its directories") {
  TempDir dir;
  const std::string path = WriteRun(dir, 2);
  REQUIRE_OK(MetricsFile::Open(path, 0));
  CHECK(Steps(path).empty());
  REQUIRE_OK(MetricsFile::Open(dir.File("a/b/metrics.jsonl"), 0));
  CHECK(Steps(dir.File("a/b/metrics.jsonl")).empty());
}

TEST_CASE("a last line torn anywhere by a kill is dropped by the next run") {
  TempDir dir;
  const std::string path = dir.File("m");
  const std::string whole = MetricsLine(Step(1));
  const std::string torn = MetricsLine(Step(2));
  for (size_t length = 1; length + 1 < torn.size(); ++length) {
    INFO(length);
    REQUIRE_OK(WriteFileAtomic(path, whole + torn.substr(0, length)));
    REQUIRE_OK(MetricsFile::Open(path, 5));
    CHECK(Steps(path) == std::vector<int64_t>{1});
  }
  REQUIRE_OK(MetricsFile::Open(path, 5)->Append(Step(2)));
  CHECK(Steps(path) == std::vector<int64_t>{1, 2});
}

TEST_CASE("a last line that only lacks its newline is kept") {
  TempDir dir;
  const std::string line = MetricsLine(Step(1));
  REQUIRE_OK(WriteFileAtomic(dir.File("m"), line.substr(0, line.size() - 1)));
  REQUIRE_OK(MetricsFile::Open(dir.File("m"), 5)->Append(Step(2)));
  CHECK(Steps(dir.File("m")) == std::vector<int64_t>{1, 2});
}

TEST_CASE("somebody else's file is left as it is") {
  TempDir dir;
  const std::string path = dir.File("notes.txt");
  for (const char* content : {"dear diary\n", "dear diary", "{\"step\":1}\n{\"step\":2}\n"}) {
    REQUIRE_OK(WriteFileAtomic(path, content));
    CHECK_STATUS(MetricsFile::Open(path, 0), absl::StatusCode::kFailedPrecondition,
                 path + ":1: not a line of a metrics file");
    CHECK(*ReadFile(path) == content);
  }
}

TEST_CASE("lines with other keys, another order or a rest are refused") {
  for (const char* line :
       {"", "{}", "{\"step\":1}", "{\"step\":1,\"validation_loss\":2,\"x\":3}",
        "{\"validation_loss\":2,\"step\":1}", "{\"step\":1.5,\"validation_loss\":2}",
        "{\"step\":1,\"validation_loss\":two}", "{\"step\":1,\"bits_per_byte\":2}",
        "{\"step\":1,\"validation_loss\":2,\"bits_per_byte\":}",
        "{\"step\":1,\"validation_loss\":2} "}) {
    INFO(line);
    CHECK_FALSE(ParseMetricsLine(line).ok());
  }
}

TEST_CASE("a device is written to but never read: its end might not come") {
  const auto file = MetricsFile::Open("/dev/zero", 0);
  REQUIRE_OK(file);
}

TEST_CASE("when the disk fills in the middle of a line, no part of it stays") {
  TempDir dir;
  const std::string path = WriteRun(dir, 1);
  auto file = MetricsFile::Open(path, 1);
  REQUIRE_OK(file);
  const std::string before = *ReadFile(path);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  rlimit limit = old_limit;
  limit.rlim_cur = before.size() + 10;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const absl::Status status = file->Append(Step(2));
  REQUIRE(setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  CHECK_FALSE(status.ok());
  CHECK(*ReadFile(path) == before);
  REQUIRE_OK(file->Append(Step(2)));
  CHECK(Steps(path) == std::vector<int64_t>{1, 2});
}

}  // namespace
}  // namespace convene::worker
