#include "worker_runtime/optimizer/skipped_steps.h"

#include <cmath>
#include <limits>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr SkipReason kNone = SkipReason::kNone;
constexpr SkipReason kNoNumber = SkipReason::kNoNumber;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST_CASE("so many skipped steps in a row end the run, and say which and what to do") {
  SkippedSteps skipped(3);
  CHECK_OK(skipped.Record(7, kNone, 2.5));
  CHECK_OK(skipped.Record(8, kNoNumber, kNaN));
  CHECK_OK(skipped.Record(9, kNoNumber, kNaN));
  const absl::Status end = skipped.Record(10, kNoNumber, kNaN);
  CHECK_STATUS(end, absl::StatusCode::kDataLoss, "steps 8 to 10 were all skipped");
  CHECK_STATUS(end, absl::StatusCode::kDataLoss, "the loss of step 10 is nan");
  CHECK_STATUS(end, absl::StatusCode::kDataLoss, "--max-skipped-steps allows no more");
  CHECK_STATUS(end, absl::StatusCode::kDataLoss, "lower --learning-rate");
}

TEST_CASE("a step that is not skipped begins the count anew") {
  SkippedSteps skipped(2);
  for (int64_t step = 1; step <= 100; ++step) {
    CHECK_OK(skipped.Record(step, step % 2 == 0 ? kNoNumber : kNone, 2.5));
  }
  CHECK_OK(skipped.AtEnd());
}

TEST_CASE("a run without a single update is no success, however short") {
  SkippedSteps skipped(20);
  CHECK_OK(skipped.AtEnd());  // nothing was left to do
  CHECK_OK(skipped.Record(30, kNoNumber, kNaN));
  CHECK_STATUS(skipped.AtEnd(), absl::StatusCode::kDataLoss, "step 30 was skipped");
  CHECK_STATUS(skipped.AtEnd(), absl::StatusCode::kDataLoss, "no step of this job changed");
  CHECK_OK(skipped.Record(31, kNone, 2.5));
  CHECK_OK(skipped.Record(32, kNoNumber, kNaN));
  CHECK_OK(skipped.AtEnd());
}

TEST_CASE("a job whose last steps were skipped, more than ever changed a weight, is no success") {
  SkippedSteps skipped(20);
  for (int64_t step = 1; step <= 4; ++step) CHECK_OK(skipped.Record(step, kNone, 2.5));
  for (int64_t step = 5; step <= 8; ++step) CHECK_OK(skipped.Record(step, kNoNumber, kNaN));
  CHECK_OK(skipped.AtEnd());
  CHECK_OK(skipped.Record(9, kNoNumber, kNaN));
  CHECK_STATUS(skipped.AtEnd(), absl::StatusCode::kDataLoss, "steps 5 to 9 were all skipped");
  CHECK_STATUS(skipped.AtEnd(), absl::StatusCode::kDataLoss, "only 4 steps changed a weight");
  CHECK_OK(skipped.Record(10, kNone, 2.5));
  CHECK_OK(skipped.AtEnd());
  SkippedSteps resumed(20, /*updates=*/295);
  CHECK_OK(resumed.Record(296, kNone, 2.5));
  for (int64_t step = 297; step <= 300; ++step) CHECK_OK(resumed.Record(step, kNoNumber, kNaN));
  CHECK_OK(resumed.AtEnd());
}

TEST_CASE(
    "steps that change the weights are counted on from the checkpoint's, skipped ones are not") {
  SkippedSteps fresh(20);
  for (int64_t step = 1; step <= 10; ++step)
    CHECK_OK(fresh.Record(step, step <= 3 ? kNoNumber : kNone, 2.5));
  CHECK(fresh.updates() == 7);
  SkippedSteps resumed(20, fresh.updates());
  CHECK(resumed.updates() == 7);
  CHECK_OK(resumed.Record(11, kNoNumber, kNaN));
  CHECK(resumed.updates() == 7);
  CHECK_OK(resumed.Record(12, kNone, 2.5));
  CHECK(resumed.updates() == 8);
}

TEST_CASE("a job ends as if it had not been interrupted before its last skipped steps") {
  for (const int64_t updates : {0, 1, 2, 3, 9}) {
    for (const int64_t skipped : {0, 1, 2, 3}) {
      INFO(updates << " updates, then " << skipped << " skipped steps");
      SkippedSteps whole(20);
      for (int64_t step = 0; step < updates; ++step) CHECK_OK(whole.Record(step, kNone, 2.5));
      SkippedSteps resumed(20, whole.updates());
      for (int64_t step = 0; step < skipped; ++step) {
        for (SkippedSteps* const each : {&whole, &resumed}) {
          CHECK_OK(each->Record(updates + step, SkipReason::kGradientSpike, 2.5));
        }
      }
      CHECK(whole.AtEnd() == resumed.AtEnd());
    }
  }
}

TEST_CASE("a step of which no target counts is neither an update nor a fault") {
  SkippedSteps skipped(2);
  CHECK_OK(skipped.Record(1, kNoNumber, kNaN));
  for (int empty = 0; empty < 50; ++empty) skipped.RecordEmpty();
  CHECK(skipped.updates() == 0);
  CHECK_STATUS(skipped.Record(52, kNoNumber, kNaN), absl::StatusCode::kDataLoss,
               "steps 1 to 52 were");
  CHECK_OK(skipped.Record(53, kNone, 2.5));
  skipped.RecordEmpty();
  CHECK(skipped.updates() == 1);
  CHECK_OK(skipped.AtEnd());
}

TEST_CASE("a job of which no target counts is no success") {
  SkippedSteps skipped(2);
  for (int step = 0; step < 3; ++step) skipped.RecordEmpty();
  CHECK_STATUS(skipped.AtEnd(), absl::StatusCode::kDataLoss, "none of this run's 3 steps");
  SkippedSteps resumed(3, /*updates=*/5);
  resumed.RecordEmpty();
  CHECK_OK(resumed.AtEnd());  // else each restart before such a last step would fail again
}

TEST_CASE("a skipped step says why, and others say nothing") {
  const auto why = [](SkipReason reason, double norm) {
    return WhySkipped(reason, 3.25, norm, {.loss = 3, .gradient_norm = 1.5}, 12);
  };
  CHECK(why(kNone, 3.5).empty());
  CHECK_THAT(WhyEmpty(4), Catch::StartsWith("step 4 changes nothing"));
  CHECK_THAT(why(kNoNumber, std::nan("")),
             Catch::StartsWith("skipped step 12: the gradient norm is NaN"));
  CHECK_THAT(why(kNoNumber, std::numeric_limits<double>::infinity()),
             Catch::StartsWith("skipped step 12: the gradient norm is infinite"));
  CHECK(why(SkipReason::kLossSpike, 1) ==
        "skipped step 12: the loss 3.2500 is above 3.0000, as --max-loss-spike says");
  CHECK(why(SkipReason::kGradientSpike, 2) ==
        "skipped step 12: the gradient norm 2.0000 is above 1.5000, as --max-gradient-spike says");
}

TEST_CASE("spikes in a row end the run too, and say that they may be none") {
  SkippedSteps skipped(3);
  CHECK_OK(skipped.Record(4, SkipReason::kLossSpike, 9));
  CHECK_OK(skipped.Record(5, kNone, 2));
  CHECK_OK(skipped.Record(6, kNoNumber, 8));
  CHECK_OK(skipped.Record(7, SkipReason::kLossSpike, 9));
  const absl::Status end = skipped.Record(8, SkipReason::kGradientSpike, 9.5);
  CHECK_STATUS(end, absl::StatusCode::kDataLoss,
               "steps 6 to 8 were all skipped, 2 of them because loss");
  SkippedSteps one(1);
  CHECK_STATUS(one.Record(10, SkipReason::kLossSpike, 9), absl::StatusCode::kDataLoss,
               "step 10 was skipped because loss or gradient was a spike");
  CHECK_STATUS(end, absl::StatusCode::kDataLoss, "raise --max-loss-spike");
  CHECK(skipped.updates() == 1);
}

}  // namespace
}  // namespace convene::worker
