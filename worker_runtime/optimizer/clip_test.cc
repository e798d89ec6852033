#include "worker_runtime/optimizer/clip.h"

#include <catch2/catch.hpp>
#include <limits>

namespace convene::worker {
namespace {

TEST_CASE("a norm below the limit leaves the gradient alone") {
  const ClipDecision decision = DecideClip(1.0, 0.5, 7);
  CHECK_FALSE(decision.skip_step);
  CHECK(decision.gradient_scale == 1.0f);
  CHECK(decision.why.empty());
}

TEST_CASE("a norm above the limit is brought down to it") {
  const ClipDecision decision = DecideClip(1.0, 4.0, 7);
  CHECK_FALSE(decision.skip_step);
  CHECK(decision.gradient_scale == Approx(1.0 / 4.000001));
  CHECK(decision.why.empty());
}

TEST_CASE("a limit of zero never clips") { CHECK(DecideClip(0.0, 1e30, 7).gradient_scale == 1.0f); }

TEST_CASE("a gradient of zero is left alone") {
  CHECK(DecideClip(1.0, 0.0, 7).gradient_scale == 1.0f);
}

TEST_CASE("a norm that is no number skips the step, even without a limit") {
  for (const double max_norm : {0.0, 1.0}) {
    const ClipDecision nan = DecideClip(max_norm, std::numeric_limits<double>::quiet_NaN(), 12);
    CHECK(nan.skip_step);
    CHECK(nan.gradient_scale == 0.0f);
    CHECK_THAT(nan.why, Catch::StartsWith("skipped step 12: the gradient norm is NaN"));
    const ClipDecision infinite = DecideClip(max_norm, std::numeric_limits<double>::infinity(), 13);
    CHECK(infinite.skip_step);
    CHECK_THAT(infinite.why, Catch::StartsWith("skipped step 13: the gradient norm is infinite"));
  }
}

}  // namespace
}  // namespace convene::worker
