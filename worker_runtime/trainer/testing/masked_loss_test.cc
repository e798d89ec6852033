// Targets that do not count in the loss, on layouts: what the property test's axis `masked` cannot
// compare with one process, because one process has it too.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/layout_run.h"

namespace convene::worker {
namespace {

using testing::Curve;
using testing::Sample;
using testing::TrainingRun;

constexpr int64_t kBatch = 6;

constexpr const char* kLayouts[] = {
    "",
    "dp_shard=3 micro_batch=2",
    "dp_shard=2 zero_stage=3 bucket=1 overlap=0",
    "tp=2 cp=2 sequence_parallel=on",
    // With something beside the arithmetic: these on GPUs too.
    "dp_shard=2 zero_stage=2 bucket=1",
    "dp_shard=2 zero_stage=3 offload=all",
    "pp=2 schedule=zb-h1",
    "pp=2 dp_replicate=2 schedule=interleaved virtual_stages=2 offload=optimizer",
};

TrainingRun RunOf(const std::string& layout) {
  const auto the_case =
      testing::CaseOfText(absl::StrCat(layout,
                                       " layers=4 hidden=16 kv_heads=2 head_size=4 ffn=24 "
                                       "vocabulary=16 sequence_length=8 clip=1 global_batch=",
                                       kBatch));
  REQUIRE_OK(the_case);
  REQUIRE_OK(testing::LegalLayout(*the_case));
  return testing::RunOf(*the_case);
}

Curve CurveOf(const TrainingRun& run) {
  absl::StatusOr<Curve> curve = testing::Train(run);
  REQUIRE_OK(curve);
  CHECK(curve->unequal == std::vector<std::string>());
  return *std::move(curve);
}

// The data of `run` with targets that count where `counts` says so.
template <typename Counts>
TrainingRun Masked(TrainingRun run, Counts counts) {
  run.sample = [all = run.sample, counts](int64_t position) {
    Sample sample = all(position);
    for (size_t place = 0; place < sample.targets.size(); ++place) {
      if (!counts(position, place)) sample.targets[place] = -1;
    }
    return sample;
  };
  return run;
}

// AdamW would move weights by their decay and by the moments, had it only a gradient of 0.
TEST_CASE("a step of which no target counts is as if it had not been, to the bit", "[once]") {
  if (!testing::HasPlacesOrSkips(4)) return;
  for (const char* const layout : absl::MakeSpan(kLayouts).subspan(testing::OnGpus() ? 4 : 0)) {
    INFO(layout);
    TrainingRun with = RunOf(layout);
    TrainingRun without = with;
    constexpr int64_t kEmptyStep = 2;  // of the steps from 0
    with = Masked(with, [](int64_t position, size_t) { return position / kBatch != kEmptyStep; });
    with.steps = 5;
    without.sample = [all = without.sample](int64_t position) {
      return all(position < kEmptyStep * kBatch ? position : position + kBatch);
    };
    without.steps = 4;
    const Curve curve = CurveOf(with);
    Curve expected = CurveOf(without);
    REQUIRE(curve.losses.size() == 5);
    CHECK(curve.losses[kEmptyStep] == 0);
    CHECK(curve.grad_norms[kEmptyStep] == 0);
    expected.losses.insert(expected.losses.begin() + kEmptyStep, 0);
    expected.grad_norms.insert(expected.grad_norms.begin() + kEmptyStep, 0);
    CHECK(curve.losses == expected.losses);
    CHECK(curve.grad_norms == expected.grad_norms);
    CHECK(curve.validation_loss == expected.validation_loss);
    CHECK(curve.parameters == expected.parameters);
  }
}

TEST_CASE("a run of which no target counts keeps the weights that it began with") {
  if (testing::OnGpus()) return;  // the case above has what is other there
  for (const char* const layout : kLayouts) {
    INFO(layout);
    TrainingRun run = RunOf(layout);
    run.steps = 1;
    run.adam = [](int) { return UpdateParameters{.learning_rate = 0}; };
    const Curve start = CurveOf(run);
    // Validation, after the last step, counts.
    run = Masked(RunOf(layout), [](int64_t position, size_t) { return position >= 3 * kBatch; });
    run.steps = 3;
    const Curve curve = CurveOf(run);
    CHECK(curve.losses == std::vector<double>(3, 0));
    CHECK(curve.parameters == start.parameters);
  }
}

// The loss of a step is the mean over its counted targets, wherever these lie: so the losses of two
// parts, weighted by their counts, are the loss of the whole.
TEST_CASE("losses of the parts of a batch add up to that of the whole, by their counts") {
  if (testing::OnGpus()) return;  // a GPU's losses are a CPU's: gpu_layout_test
  const auto in_first = [](int64_t position, size_t place) {
    // Whole samples of one rank, and single tokens of the other samples.
    return position % kBatch == 0 || (position % kBatch > 2 && place % 3 == 0);
  };
  const double first_count = 8 + 3 * 3;
  const double all_count = 8 * kBatch;
  for (const char* const layout : kLayouts) {
    INFO(layout);
    TrainingRun run = RunOf(layout);
    run.steps = 1;
    const double all = CurveOf(run).losses[0];
    const double first = CurveOf(Masked(run, in_first)).losses[0];
    const double second = CurveOf(Masked(run, [&](int64_t position, size_t place) {
                            return !in_first(position, place);
                          })).losses[0];
    const double sum = (first_count * first + (all_count - first_count) * second) / all_count;
    CHECK(std::abs(sum - all) < 1e-6 * all);
    CHECK(std::abs(first - second) > 1e-4 * all);
  }
}

}  // namespace
}  // namespace convene::worker
