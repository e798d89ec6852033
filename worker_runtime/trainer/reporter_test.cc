#include "worker_runtime/trainer/reporter.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/report/testing/read_metrics.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

TrainOptions Options(const TempDir& directory) {
  TrainOptions options;
  options.steps = 10;
  options.global_batch_size = 8;
  options.sequence_length = 16;
  options.log_every = 1;
  options.metrics_file = directory.File("metrics.jsonl");
  return options;
}

Contract OfFour(int epoch) {
  Contract contract;
  contract.world_size = 4;
  contract.epoch = Epoch(epoch);
  contract.attempt = epoch - 1;
  return contract;
}

TEST_CASE("a step on a GPU that the planner knows tells how much of it the step used") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  options.model = *NamedModel("llama-tiny");
  auto reporter = Reporter::Create(options, OfFour(1), {2, 2, 1}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  const auto step = [&](int64_t number, absl::Duration time) {
    CHECK_OK((*reporter)->Step(number, {.loss = 1, .counted_targets = 128}, 1e-3, time));
  };
  (*reporter)->SetGpu("NVIDIA V100-SXM2-16GB");
  step(1, absl::Seconds(1));
  (*reporter)->SetGpu("NVIDIA H100 80GB HBM3");
  step(2, absl::Seconds(1));
  step(3, absl::Milliseconds(500));
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  CHECK_FALSE(history->steps[0].mfu_full_attention.has_value());
  ModelCounts counts(options.model);
  const TokenFlops flops = FlopsOf(options.model, options.sequence_length, counts);
  // 128 tokens a second on 4 ranks.
  CHECK(*history->steps[1].mfu_full_attention ==
        Approx(32 * (flops.products + flops.full_attention) / 989e12));
  CHECK(*history->steps[1].mfu_causal_attention ==
        Approx(32 * (flops.products + flops.causal_attention) / 989e12));
  CHECK(*history->steps[2].mfu_full_attention == Approx(2 * *history->steps[1].mfu_full_attention));
}

TEST_CASE("a peak that the user tells counts on any device, and before the planner's") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  options.model = *NamedModel("llama-tiny");
  options.peak_tflops = 2;
  auto reporter = Reporter::Create(options, OfFour(1), {2, 2, 1}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  CHECK((*reporter)->mfu() == 0);
  ModelCounts counts(options.model);
  const TokenFlops flops = FlopsOf(options.model, options.sequence_length, counts);
  for (const char* device : {"CPU", "NVIDIA H100 80GB HBM3"}) {
    (*reporter)->SetGpu(device);
    CHECK_OK((*reporter)->Step(1, {.loss = 1, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
    CHECK((*reporter)->mfu() == Approx(32 * (flops.products + flops.full_attention) / 2e12));
  }
}

TEST_CASE("steps and validations become lines of the metrics file") {
  const TempDir directory;
  const TrainOptions options = Options(directory);
  const Layout layout{2, 2, 1};
  auto reporter = Reporter::Create(options, OfFour(3), layout, 0, Clock::Real());
  REQUIRE_OK(reporter);
  CHECK_OK((*reporter)->Step(1, {.loss = 5.5, .grad_norm = 2.0, .counted_targets = 128}, 1e-3,
                             absl::Milliseconds(500)));
  CHECK_OK((*reporter)->Step(2, {.loss = 5.25, .grad_norm = 1.0, .counted_targets = 128}, 2e-3,
                             absl::Milliseconds(250), absl::Microseconds(62500)));
  CHECK_OK((*reporter)->Validation({.step = 2, .validation_loss = 5.125, .bits_per_byte = 2.5}));
  CHECK_OK((*reporter)->Validation({.step = 2, .validation_set = "code", .validation_loss = 3}));
  CHECK_OK((*reporter)->CheckpointSaved("saved", {2, 0.25, 0.5}));
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  REQUIRE(history->steps.size() == 2);
  StepMetrics second = history->steps[1];
  CHECK(std::exchange(second.host_memory_peak_bytes, std::nullopt) > 1 << 20);
  CHECK(second == StepMetrics{.step = 2,
                              .loss = 5.25,
                              .grad_norm = 1.0,
                              .learning_rate = 2e-3,
                              .tokens = 256,
                              .tokens_per_second = 512,
                              .step_seconds = 0.25,
                              .data_seconds = 0.0625,
                              .epoch = 3,
                              .world_size = 4,
                              .layout = "dp2 x tp1 x pp2"});
  REQUIRE(history->validations.size() == 2);
  CHECK(history->validations[0] ==
        ValidationMetrics{.step = 2, .validation_loss = 5.125, .bits_per_byte = 2.5});
  CHECK(history->validations[1].validation_set == "code");
  CHECK(history->checkpoints == std::vector<CheckpointMetrics>{{2, 0.25, 0.5}});
}

// Of a program of its own, which the next test starts.
TEST_CASE("child: the host's peak is below 150 MiB", "[.child]") {
  const TempDir directory;
  const TrainOptions options = Options(directory);
  auto reporter = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  CHECK_OK((*reporter)->Step(1, {.loss = 5, .counted_targets = 32}, 1e-3, absl::Seconds(1)));
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  CHECK(history->steps.at(0).host_memory_peak_bytes < int64_t{150} << 20);
}

TEST_CASE("the host's peak is the trainer's own, not that of the program that started it") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Pages that were touched count for the process, whatever program it becomes.
    const std::vector<char> held(size_t{300} << 20, 1);
    execl("/proc/self/exe", "reporter_test", "[.child]", static_cast<char*>(nullptr));
    _exit(held[0]);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("the share of counted targets is told, and a step without one has no loss") {
  const TempDir directory;
  const TrainOptions options = Options(directory);
  auto reporter = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  CHECK_OK((*reporter)->Step(1, {.loss = 5, .counted_targets = 32}, 1e-3, absl::Seconds(1)));
  CHECK_OK((*reporter)->Step(2, {.skipped = true}, 1e-3, absl::Seconds(1)));
  CHECK_OK((*reporter)->Validation({.step = 2, .validation_loss = 5}));
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  REQUIRE(history->steps.size() == 2);
  CHECK(history->steps[0].counted_share == 0.25);
  CHECK(history->steps[0].tokens == 128);
  CHECK(std::isnan(history->steps[1].loss));
  CHECK(history->steps[1].counted_share == 0);
  CHECK(history->validations[0].bits_per_byte == std::nullopt);
}

TEST_CASE("of pairs of answers, of which none is left out, no share is told") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  options.preference_beta = 0.1;
  auto reporter = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  CHECK_OK((*reporter)->Step(1, {.loss = 0.7, .counted_targets = 8}, 1e-3, absl::Seconds(1)));
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  CHECK(history->steps[0].counted_share == std::nullopt);
  CHECK(history->steps[0].reward_accuracy == 0);
}

TEST_CASE("a run that resumes takes back the steps that it does again") {
  const TempDir directory;
  const TrainOptions options = Options(directory);
  for (const int first_step : {0, 1}) {
    auto reporter = Reporter::Create(options, OfFour(1), {}, first_step, Clock::Real());
    REQUIRE_OK(reporter);
    for (int64_t step = first_step + 1; step <= 3; ++step) {
      CHECK_OK((*reporter)->Step(step, {.loss = 1.0 + first_step, .counted_targets = 128}, 1e-3,
                                 absl::Seconds(1)));
    }
  }
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  REQUIRE(history->steps.size() == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(history->steps[i].step == i + 1);
    CHECK(history->steps[i].loss == (i == 0 ? 1.0 : 2.0));
  }
}

TEST_CASE("a run that resumes knows what was told after its step, and tells it once") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  const auto tell = [](Reporter& reporter, const std::optional<std::string>& set) {
    CHECK_OK(reporter.Validation({.step = 2, .validation_set = set, .validation_loss = 3}));
  };
  {
    const auto first = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
    REQUIRE_OK(first);
    tell(**first, std::nullopt);
    CHECK_OK((*first)->Sample({.step = 2, .sample_end = "length"}));
    CHECK_FALSE((*first)->HasValidation(2, std::nullopt));  // it goes on after step 0
  }
  const auto second = Reporter::Create(options, OfFour(2), {}, 2, Clock::Real());
  REQUIRE_OK(second);
  CHECK((*second)->HasValidation(2, std::nullopt));
  CHECK_FALSE((*second)->HasValidation(2, "code"));
  CHECK_FALSE((*second)->HasValidation(4, std::nullopt));
  CHECK((*second)->HasSample(2));
  tell(**second, std::nullopt);
  tell(**second, "code");
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  REQUIRE(history->validations.size() == 2);
  CHECK(history->validations[1].validation_set == "code");
  const auto third = Reporter::Create(options, OfFour(3), {}, 3, Clock::Real());
  REQUIRE_OK(third);
  CHECK_FALSE((*third)->HasSample(2));
  options.metrics_file = "";
  const auto without = Reporter::Create(options, OfFour(3), {}, 3, Clock::Real());
  REQUIRE_OK(without);
  CHECK((*without)->HasSample(3));
  CHECK((*without)->HasValidation(3, "code"));
}

TEST_CASE("a training that goes back takes back the lines of the later steps") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  options.spikes.max_rollbacks = 1;
  auto reporter = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  const auto make = [&](int64_t first, int64_t last, double loss) {
    for (int64_t step = first; step <= last; ++step) {
      CHECK_OK(
          (*reporter)->Step(step, {.loss = loss, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
    }
  };
  make(1, 5, 1.0);
  CHECK_OK((*reporter)->GoBack(2));
  make(3, 4, 2.0);
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  std::vector<double> losses;
  for (const StepMetrics& metrics : history->steps) losses.push_back(metrics.loss);
  CHECK(losses == std::vector<double>{1, 1, 2, 2});
}

TEST_CASE("a full disk costs lines of metrics, and ends the run only when it stays full") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  options.metrics_file = "/dev/full";
  auto reporter = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
  REQUIRE_OK(reporter);
  absl::Status end;
  int64_t lines = 0;
  while (end.ok() && lines < 2000) {
    ++lines;
    end = (*reporter)->Step(lines, {.loss = 1, .counted_targets = 128}, 1e-3, absl::Seconds(1));
  }
  CHECK(lines == 1000);
  CHECK_STATUS(end, absl::StatusCode::kResourceExhausted, "/dev/full");
  CHECK_STATUS(end, absl::StatusCode::kResourceExhausted, "(1000 failures in a row)");
}

TEST_CASE("a disk that is full when the run begins is tried again with each line") {
  const TempDir directory;
  const TrainOptions options = Options(directory);
  std::unique_ptr<Reporter> reporter;
  {
    auto first = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
    REQUIRE_OK(first);
    for (const int64_t step : {1, 2}) {
      CHECK_OK((*first)->Step(step, {.loss = 1, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
    }
  }
  {
    // A resume takes lines back, and needs room for it.
    const ScopedFileFault full(
        [](FileOp op, const std::string& /*path*/) { return op == FileOp::kWrite ? ENOSPC : 0; });
    auto second = Reporter::Create(options, OfFour(2), {}, 1, Clock::Real());
    REQUIRE_OK(second);
    reporter = *std::move(second);
    CHECK_OK(reporter->Step(2, {.loss = 2, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
  }
  CHECK_OK(reporter->Step(3, {.loss = 3, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
  CHECK_OK(reporter->Step(4, {.loss = 4, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
  const auto history = ReadMetrics(options.metrics_file);
  REQUIRE_OK(history);
  std::vector<int64_t> steps;
  for (const StepMetrics& metrics : history->steps) steps.push_back(metrics.step);
  CHECK(steps == std::vector<int64_t>{1, 3, 4});
}

TEST_CASE("a file that stays full is read again ever more rarely, and not with each line") {
  const TempDir directory;
  const TrainOptions options = Options(directory);
  {
    auto first = Reporter::Create(options, OfFour(1), {}, 0, Clock::Real());
    REQUIRE_OK(first);
    CHECK_OK((*first)->Step(1, {.loss = 1, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
    CHECK_OK((*first)->Step(2, {.loss = 1, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
  }
  int reads = 0;
  const ScopedFileFault full([&](FileOp op, const std::string& path) {
    reads += op == FileOp::kOpen && path == options.metrics_file ? 1 : 0;
    return op == FileOp::kWrite ? ENOSPC : 0;
  });
  auto second = Reporter::Create(options, OfFour(2), {}, 1, Clock::Real());
  REQUIRE_OK(second);
  for (int64_t step = 2; step <= 500; ++step) {
    CHECK_OK((*second)->Step(step, {.loss = 2, .counted_targets = 128}, 1e-3, absl::Seconds(1)));
  }
  CHECK(reads > 2);
  CHECK(reads <= 10);
}

TEST_CASE("a metrics file that cannot be made is an error with its path") {
  const TempDir directory;
  TrainOptions options = Options(directory);
  options.metrics_file = directory.path();
  CHECK_STATUS(Reporter::Create(options, OfFour(1), {}, 0, Clock::Real()).status(),
               absl::StatusCode::kInvalidArgument, directory.path());
}

}  // namespace
}  // namespace convene::worker
