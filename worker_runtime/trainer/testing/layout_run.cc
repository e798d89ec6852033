#include "worker_runtime/trainer/testing/layout_run.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"
#include "tools/base/environment.h"
#include "tools/base/random.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/trainer/setup.h"

namespace convene::worker::testing {
namespace {

constexpr int kShrinkingRuns = 300;
constexpr absl::Duration kShrinkingTime = absl::Seconds(90);

// SplitMix64 (Steele, Lea and Flood 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A quarter of the tokens is 0, which ends a document where rows are packed.
int32_t TokenAt(const LayoutCase& c, int64_t sample, int place) {
  const uint64_t x = Mix(Mix(sample) + place);
  return x % 4 == 0 ? 0 : static_cast<int32_t>((x >> 8) % c.vocabulary);
}

// Of a step's samples one counts at least at one place, unless the whole step is masked. Both lie
// at another place in every step.
bool Counts(const LayoutCase& c, const BatchRamp& ramp, int64_t sample, int place) {
  int64_t step = 0;
  while (SamplesAfter(ramp, step + 1) <= sample) ++step;
  const int64_t first = SamplesAfter(ramp, step);
  const bool is_sure = static_cast<uint64_t>(sample - first) ==
                       Mix(step + 2'000) % static_cast<uint64_t>(BatchAt(ramp, first));
  const bool is_sure_place = is_sure && static_cast<uint64_t>(place) ==
                                            Mix(step) % static_cast<uint64_t>(c.sequence_length);
  const bool is_drawn_place = Mix(Mix(sample) + place + 1'000) % 3 == 0;
  switch (c.masked) {
    case kTokensMasked:
      return is_sure_place || is_drawn_place;
    case kSamplesMasked:
      return is_sure || Mix(sample) % 3 == 0;
    case kAllButOneSampleMasked:
      return is_sure;
    case kAllButOneTokenMasked:
      return is_sure_place;
    case kStepsMasked:
      return step % 3 != 1 && (is_sure_place || is_drawn_place);
    default:
      return true;
  }
}

}  // namespace

TrainingRun RunOf(const LayoutCase& c, bool on_gpus, bool reproducible) {
  TrainOptions options = OptionsOf(c);
  options.reproducible = reproducible;
  const Layout layout = *LegalLayout(c);
  TrainingRun run = {.engine = MakeEngineOptions(options, layout, /*rank=*/0,
                                                 on_gpus ? DeviceKind::kCuda : DeviceKind::kCpu),
                     .cut = CutOf(options, layout),
                     .ramp = options.ramp,
                     .steps = static_cast<int>(options.steps),
                     .sample =
                         [c, ramp = RampOf(options)](int64_t position) {
                           Sample sample;
                           for (int t = 0; t < c.sequence_length; ++t) {
                             sample.inputs.push_back(TokenAt(c, position, t));
                             sample.targets.push_back(
                                 Counts(c, ramp, position, t) ? TokenAt(c, position, t + 1) : -1);
                           }
                           return sample;
                         },
                     .end_of_document = 0,
                     .adam =
                         [options](int) {
                           return UpdateParameters{.learning_rate = options.learning_rate,
                                                   .beta1 = options.beta1,
                                                   .beta2 = options.beta2,
                                                   .epsilon = options.epsilon,
                                                   .weight_decay = options.weight_decay,
                                                   .momentum = options.momentum,
                                                   .nesterov = options.nesterov};
                         },
                     // Of the losses that two steps have any is a spike.
                     .limits =
                         [c](int step) {
                           return c.spikes != 0 && step % 3 == 2 ? StepLimits{.loss = 0}
                                                                 : StepLimits();
                         },
                     .transport = on_gpus       ? Transport::kNccl
                                  : c.gloo != 0 ? Transport::kGloo
                                                : Transport::kLoopback};
  run.engine.timeout = EngineOptions().timeout;  // on emulated GPUs a step may take long
  run.engine.bucket_count_min = c.bucket;
  run.engine.row_chunks = c.row_chunks;
  return run;
}

std::string Difference(const LayoutCase& the_case) {
  const absl::StatusOr<Curve> expected = Train(RunOf(OneProcess(the_case), /*on_gpus=*/false));
  if (!expected.ok()) return absl::StrCat("one process: ", expected.status().ToString());
  const absl::StatusOr<Curve> curve = Train(RunOf(the_case));
  if (!curve.ok()) return curve.status().ToString();
  std::string difference = CurveDifference(*curve, *expected);
  if (difference.empty()) difference = TensorDifference(*curve, *expected);
  if (difference.empty() && !curve->unequal.empty()) {
    difference = absl::StrCat("copies are not the same bits: ", curve->unequal.front());
  }
  return difference;
}

namespace {

void CheckSeed(const std::string& command, uint64_t seed) {
  const LayoutCase the_case = CaseOfSeed(seed);
  // For a crash, which nothing shrinks.
  INFO("CONVENE_LAYOUT_SEED=" << seed << ": " << TextOf(the_case));
  const std::string difference = Difference(the_case);
  if (difference.empty()) return;
  // Bazel's --test_runner_fail_fast: who only wants to know that it fails waits for no shrinking.
  if (ProcessEnvironment()("TESTBRIDGE_TEST_RUNNER_FAIL_FAST").has_value()) FAIL(difference);
  const MonotonicTime end = Clock::Real().Now() + kShrinkingTime;
  const Shrunk shrunk = Shrink(the_case, kShrinkingRuns, [&](const LayoutCase& simpler) {
    return Clock::Real().Now() < end && !Difference(simpler).empty();
  });
  // Not by Catch2, which breaks lines.
  std::cout << "CONVENE_LAYOUT_SEED=" << seed << " FAILED. The smallest such case, after "
            << shrunk.runs << " runs: " << Difference(shrunk.smallest) << "\nCONVENE_LAYOUT_CASE='"
            << TextOf(shrunk.smallest) << "' " << command << std::endl;
  FAIL(difference);
}

uint64_t NumberFromEnvironment(const char* name) {
  const std::optional<std::string> text = ProcessEnvironment()(name);
  uint64_t number = 0;
  if (text.has_value()) REQUIRE(absl::SimpleAtoi(*text, &number));
  return number;
}

}  // namespace

void CheckSeeds(const std::string& command, uint64_t seeds) {
  if (const auto text = ProcessEnvironment()("CONVENE_LAYOUT_CASE"); text.has_value()) {
    const auto the_case = CaseOfText(*text);
    REQUIRE_OK(the_case);
    REQUIRE_OK(LegalLayout(*the_case));
    const std::string difference = Difference(*the_case);
    INFO(difference);
    CHECK(difference.empty());
    return;
  }
  if (const uint64_t seed = NumberFromEnvironment("CONVENE_LAYOUT_SEED"); seed > 0) {
    return CheckSeed(command, seed);
  }
  const uint64_t seconds = NumberFromEnvironment("CONVENE_LAYOUT_SECONDS");
  if (seconds == 0) {
    for (uint64_t seed = 1; seed <= seeds; ++seed) CheckSeed(command, seed);
    return;
  }
  const uint64_t fresh = 1'000'000 + RandomU64() % 1'000'000'000;
  std::cout << "cases that no run before has seen, from CONVENE_LAYOUT_SEED=" << fresh << " on"
            << std::endl;
  uint64_t seed = fresh;
  const MonotonicTime end = Clock::Real().Now() + absl::Seconds(seconds);
  while (Clock::Real().Now() < end) CheckSeed(command, seed++);
  std::cout << seed - fresh << " cases\n";
}

}  // namespace convene::worker::testing
